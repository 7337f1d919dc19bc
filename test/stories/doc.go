// Package stories has every step of every story of package migration go wrong, once in
// each way, and tells what is left: one row for each story, step and fault. The rows that
// there must be come from the stories themselves, so that a step that nobody tries is
// told as missing. Of drains, which have no steps, everything goes wrong that is written down.
//
// It plays them in the simulated fleet of test/sim, with the real ledger, host verbs,
// conductor and embedded Placement; it reads and writes nothing outside of its process.
// The same stories as a table: make stories.
package stories
