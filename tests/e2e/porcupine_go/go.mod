module zht.test/porcupine_go

go 1.18

require github.com/anishathalye/porcupine v0.1.6
