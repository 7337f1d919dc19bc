// Package hooks runs an operator's executables at the phases of a move.
//
// They stand in DIR/<phase>/NN-name, phases in Nova's names, and run in name
// order. Each gets one JSON document on standard input (Request) and may answer
// with `{"data":{…}}`, which is handed to the hooks of the phase that undoes it.
// Exit status 0 is done, 75 (EX_TEMPFAIL of sysexits.h) try again later,
// anything else failed.
//
// A hook runs in a process session of its own, so that neither a terminal nor
// the agent's end takes it along; it is recorded by pid and start time before it
// begins, so that a restarted agent can end one left behind. It has
// a deadline, after which its whole process group is killed. Its output is
// bounded: a hook that talks without end is cut, not the agent's memory.
//
// The package reads the hook folder, and stat and environ of processes below /proc.
// It writes nothing.
package hooks
