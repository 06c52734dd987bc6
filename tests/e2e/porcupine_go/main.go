// Is a history of operations on keys linearizable? Reads one JSON object a line: client, key, op (insert lookup remove append
// cswap callback), value, expect (null: absent), status (ok notfound mismatch unknown), found (the value that came back; null:
// absent), version, start and end in nanoseconds (end 0: no answer came, it may take effect at any later time). Prints a line for each key; ends
// with 1 when one is not linearizable, 2 when the time is over before that is known.
//
// The model holds versions too: they grow with every change of a key, and an answer's version is the one of its change. An
// operation whose answer was lost has an unknown version; it is carried as "greater than the last one known".
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Client  int
	Key     string
	Op      string
	Value   string
	Expect  *string
	Status  string
	Found   *string
	Version uint64
	Start   int64
	End     int64
}

// What a key holds. Absent: present is false. exact: version is that of the last change, else of one before it.
type state struct {
	present bool
	value   string
	version uint64
	exact   bool
}

func same(found *string, s state) bool {
	if found == nil {
		return !s.present
	}
	return s.present && *found == s.value
}

// A change whose answer tells its version, or does not (0).
func changed(s state, present bool, value string, version uint64) (bool, state) {
	if version == 0 {
		return true, state{present, value, s.version, false}
	}
	return version > s.version, state{present, value, version, true}
}

// What was read with its version: does the state agree? It then knows its version.
func read(s state, version uint64) (bool, state) {
	if !s.present || version == 0 {
		return true, s
	}
	if s.exact {
		return version == s.version, s
	}
	return version > s.version, state{s.present, s.value, version, true}
}

func step(s state, o operation) (bool, state) {
	unknown := o.Status == "unknown"
	switch o.Op {
	case "insert":
		return changed(s, true, o.Value, o.Version)
	case "append":
		value := o.Value
		if s.present {
			value = s.value + o.Value
		}
		return changed(s, true, value, o.Version)
	case "remove":
		if unknown {
			if !s.present {
				return true, s
			}
			return changed(s, false, "", 0)
		}
		if o.Status == "notfound" {
			return !s.present, s
		}
		if !s.present {
			return false, s
		}
		return changed(s, false, "", o.Version)
	case "cswap":
		if same(o.Expect, s) {
			if o.Status == "mismatch" {
				return false, s
			}
			return changed(s, true, o.Value, o.Version)
		}
		if o.Status == "ok" {
			return false, s
		}
		if unknown {
			return true, s
		}
		if !same(o.Found, s) {
			return false, s
		}
		return read(s, o.Version)
	case "lookup":
		if o.Status == "notfound" {
			return !s.present, s
		}
		if !same(o.Found, s) {
			return false, s
		}
		return read(s, o.Version)
	case "callback": // answered: at some moment the key held what was waited for
		if o.Expect != nil && !(s.present && s.value == *o.Expect) || !same(o.Found, s) {
			return false, s
		}
		return read(s, o.Version)
	}
	panic("unknown op " + o.Op)
}

var model = porcupine.Model{
	Init: func() interface{} { return state{exact: true} },
	Step: func(s, input, output interface{}) (bool, interface{}) {
		ok, next := step(s.(state), input.(operation))
		return ok, next
	},
	Equal: func(a, b interface{}) bool { return a.(state) == b.(state) },
}

func main() {
	byKey := map[string][]porcupine.Operation{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<28)
	for lines.Scan() {
		var o operation
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			fmt.Println("not a history:", err)
			os.Exit(3)
		}
		end := o.End
		if end == 0 {
			end = 1 << 62
		}
		byKey[o.Key] = append(byKey[o.Key], porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Start, Return: end})
	}
	var keys []string
	for key := range byKey {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	worst := 0
	for _, key := range keys {
		began := time.Now()
		result := porcupine.CheckOperationsTimeout(model, byKey[key], 5*time.Minute)
		fmt.Printf("%s: %d operations: %s (%.1f s)\n", key, len(byKey[key]), result, time.Since(began).Seconds())
		if result == porcupine.Illegal {
			worst = 1
		} else if result == porcupine.Unknown && worst == 0 {
			worst = 2
		}
	}
	os.Exit(worst)
}
