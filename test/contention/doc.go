// Package contention lets the conductors of many agents move guests onto few
// hosts at once, over one Placement, whichever is behind the URL.
//
// The conductors, their stories with all undos, and the client are the real ones;
// hosts are made up, without a hypervisor, and never refuse: Placement alone says
// what fits. Moves fail at random at every step after the two consumers were
// swapped, and answers of writes get lost, so that as many swaps are undone as
// stand.
//
// It makes its own providers and consumers, and reads what becomes of them the
// whole time.
package contention
