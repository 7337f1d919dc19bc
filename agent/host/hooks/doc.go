// Package hooks runs an operator's executables at the phases of a move.
//
// They stand in DIR/<phase>/NN-name, phases in Nova's names, and run in name
// order. Each gets one JSON document on standard input (Request) and may answer
// with `{"data":{…}}`, which is handed to the hooks of the phase that undoes it.
// Exit status 0 is done, 75 (EX_TEMPFAIL of sysexits.h) try again later,
// anything else failed.
//
// A hook runs as a transient unit of systemd where the agent is its service: outside of the
// agent's sandbox, so that it may do what the agent may not, and in a control group that
// nothing of it leaves. Without a manager it is a child in a process session of its own.
// Either way neither a terminal nor the agent's end takes it along, and it is recorded before
// it begins, so that a restarted agent can end one left behind. It has a deadline, after
// which all its processes are killed. Its output is bounded: a hook that talks without end is
// cut, not the agent's memory.
//
// The package reads the hook folder, and stat and environ of processes below /proc.
// It writes nothing.
package hooks
