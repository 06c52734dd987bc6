// A Go Redis client (go-redis), unmodified, against the address in its first argument. Prints "ok" when every answer was
// right; else what was wrong, and ends with 1.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

func wrong(format string, arguments ...any) {
	fmt.Printf(format+"\n", arguments...)
	os.Exit(1)
}

func want[T any](what string, expected T) func(T, error) {
	return func(got T, err error) {
		if err != nil || !reflect.DeepEqual(got, expected) {
			wrong("%s: %v (%v), not %v", what, got, err, expected)
		}
	}
}

func wantNil(what string, err error) {
	if !errors.Is(err, redis.Nil) {
		wrong("%s: %v, not nil", what, err)
	}
}

func main() {
	for _, protocol := range []int{2, 3} {
		client := redis.NewClient(&redis.Options{Addr: os.Args[1], Protocol: protocol, ClientName: "go-test"})
		exercise(client, fmt.Sprintf("go%d:", protocol))
		client.Close()
	}
	fmt.Println("ok")
}

func exercise(c *redis.Client, p string) {
	want("PING", "PONG")(c.Ping(ctx).Result())
	want("SET", "OK")(c.Set(ctx, p+"k", "v", time.Minute).Result())
	want("GET", "v")(c.Get(ctx, p+"k").Result())
	want("TTL", time.Minute)(c.TTL(ctx, p+"k").Result())
	want("PERSIST", true)(c.Persist(ctx, p+"k").Result())
	want("TTL of one that stays", time.Duration(-1))(c.TTL(ctx, p+"k").Result())
	want("EXPIRE", true)(c.Expire(ctx, p+"k", time.Hour).Result())
	wantNil("GET of none", c.Get(ctx, p+"none").Err())
	want("SETNX", false)(c.SetNX(ctx, p+"k", "w", 0).Result())
	want("SETXX", true)(c.SetXX(ctx, p+"k", "w", 0).Result())
	want("GETSET", "w")(c.GetSet(ctx, p+"k", "x").Result())
	want("GETDEL", "x")(c.GetDel(ctx, p+"k").Result())
	want("INCR", int64(1))(c.Incr(ctx, p+"n").Result())
	want("DECRBY", int64(-9))(c.DecrBy(ctx, p+"n", 10).Result())
	want("INCRBYFLOAT", -8.5)(c.IncrByFloat(ctx, p+"n", 0.5).Result())
	want("APPEND", int64(6))(c.Append(ctx, p+"log", "abcdef").Result())
	want("STRLEN", int64(6))(c.StrLen(ctx, p+"log").Result())
	want("GETRANGE", "ef")(c.GetRange(ctx, p+"log", -2, -1).Result())
	want("SETRANGE", int64(6))(c.SetRange(ctx, p+"log", 0, "AB").Result())
	want("MSET", "OK")(c.MSet(ctx, p+"a", "1", p+"b", "2").Result())
	want("MGET", []any{"1", "2", any(nil)})(c.MGet(ctx, p+"a", p+"b", p+"none").Result())
	want("MSETNX", true)(c.MSetNX(ctx, "{"+p+"}x", "1", "{"+p+"}y", "2").Result())
	want("MSETNX again", false)(c.MSetNX(ctx, "{"+p+"}y", "1", "{"+p+"}z", "2").Result())
	want("EXISTS", int64(2))(c.Exists(ctx, p+"a", p+"b", p+"none").Result())
	want("DEL", int64(2))(c.Del(ctx, p+"a", p+"b", p+"none").Result())
	want("TYPE", "string")(c.Type(ctx, p+"log").Result())
	want("ZHT.CSWAP", any(nil))(nilAsNothing(c.Do(ctx, "ZHT.CSWAP", p+"log", "other", "new").Result()))
	if _, err := c.LPush(ctx, p+"list", "v").Result(); err == nil {
		wrong("LPUSH: taken")
	}

	// Pipelines and transactions.
	commands, err := c.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := 0; i < 1000; i++ {
			pipe.Set(ctx, p+"pipe:"+strconv.Itoa(i), i, 0)
			pipe.Get(ctx, p+"pipe:"+strconv.Itoa(i))
		}
		return nil
	})
	if err != nil || len(commands) != 2000 || commands[1999].(*redis.StringCmd).Val() != "999" {
		wrong("a pipeline: %v", err)
	}
	if _, err := c.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Incr(ctx, "{"+p+"}count")
		pipe.Expire(ctx, "{"+p+"}count", time.Hour)
		return nil
	}); err != nil {
		wrong("a transaction: %v", err)
	}

	// Optimistic transactions of many at once: none is lost.
	var group sync.WaitGroup
	for worker := 0; worker < 8; worker++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := 0; i < 25; i++ {
				for {
					err := c.Watch(ctx, func(tx *redis.Tx) error {
						old, err := tx.Get(ctx, p+"total").Int()
						if err != nil && !errors.Is(err, redis.Nil) {
							return err
						}
						_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
							pipe.Set(ctx, p+"total", old+1, 0)
							return nil
						})
						return err
					}, p+"total")
					if err == nil {
						break
					}
					if !errors.Is(err, redis.TxFailedErr) {
						wrong("WATCH: %v", err)
					}
				}
			}
		}()
	}
	group.Wait()
	want("the sum of 8 times 25", "200")(c.Get(ctx, p+"total").Result())

	found := 0
	keys := c.Scan(ctx, 0, p+"pipe:*", 100).Iterator()
	seen := map[string]bool{}
	for keys.Next(ctx) {
		seen[keys.Val()] = true
	}
	found = len(seen)
	if keys.Err() != nil || found != 1000 {
		wrong("SCAN: %d keys, %v", found, keys.Err())
	}
	if info, err := c.Command(ctx).Result(); err != nil || info["get"].FirstKeyPos != 1 {
		wrong("COMMAND: %v", err)
	}
}

func nilAsNothing(value any, err error) (any, error) {
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return value, err
}
