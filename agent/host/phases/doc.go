// Package phases runs an operator's hooks in the course of a move: those of a phase once
// for each attempt, however often the verb is asked for that the phase belongs to.
//
// It reads the migration's context, which hooks are told, and its own records; which
// phases there are, and how a program is run, package hooks says. It alone writes the
// record of a phase: the hook that is under way, what hooks answered, and that all is
// done.
//
// Invariants:
//
//   - a hook is on record before it begins, and one that an agent left behind is ended
//     before another runs; one that cannot be ended is waited for;
//   - what hooks answered is kept after a failure too: the phase that undoes this one
//     is given it;
//   - past the point of no return no hook fails the move, but one that asks for another
//     try, or cannot be ended;
//   - a phase without hooks leaves no record.
//
// Whoever runs a phase has the instance's turn.
package phases
