// Package task runs named steps that can be undone, and forgets none of them
// whatever dies.
//
// A story is an ordered list of steps. Each has a Do and an Undo, and the
// journal is written around them: a step's intent is durable before its effect
// begins, its end only when the effect is complete. So a restart meets at most
// one step in doubt, and Do and Undo must be safe to repeat. A step that failed
// may have half happened: undoing begins with it.
//
// Steps marked Forward lie past the point of no return. They are retried until
// they are done, with back-off and across restarts, and nothing is undone any
// more. An Undo that answers ErrTooLate says that the world has passed that point
// by itself: the task turns round and goes forward.
//
// The package knows no hypervisor and no migration. It reads and alone writes
// one bucket of the Store, one key for each task. Invariants:
//
//   - no effect of a step, and no undo, is begun before the journal says so;
//   - an undo that cannot be done is never forgotten: the task stays in phase
//     undoing and is retried, across restarts;
//   - the output of a step is durable before a later step sees it.
//
// # Phases
//
//	from \ to   doing             undoing                    done        undone
//	(none)      Begin             –                          –           –
//	doing       next step         a step failed, Cancel      last step   –
//	undoing     an Undo answered  –                          –           last undo
//	            ErrTooLate
package task
