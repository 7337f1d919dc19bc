// Package fit answers whether a guest fits on a host, where on it, and if not,
// every reason why not.
//
// It is for claims.Tracker to ask under the claim lock and for a dry run to ask
// without it: pure arithmetic on values, deterministic, microseconds. It reads
// nothing, writes nothing, and imports only topology.
//
// Fits holds amounts against the host as a whole: vCPUs, memory, disk. Place
// finds the cells, cores, pages and devices.
//
// # How Place decides
//
// Whether a guest cell fits a host cell does not depend on where the other guest
// cells go, because each has a host cell to itself. So each pair is held against
// the rules once (cell.go), and what is left is a bipartite matching (match.go).
// The host cells that a matching can use are the independent sets of a
// transversal matroid, and every other rule is about that set alone:
//
//   - A network that is near to some cells wants one of them.
//   - Requests for devices can be met exactly when every set Q of them finds, in
//     the pools that any of Q may use, as many functions as Q wants (Hall, Gale).
//     What a chosen cell brings to Q is a number, so Q wants a sum of numbers
//     over the set; with affinity socket, a sum over the sockets that the set
//     touches, and the sets of sockets that can be touched are a matroid again.
//
// Each such demand alone is decided by taking what brings most first: greedy is
// exact on a matroid (Edmonds). A guest without devices and networks, or with one
// demand (one network, or PCI requests of one kind), is therefore decided in
// polynomial time, O(cells² × guest cells), whatever the answer. No permutation
// of cells is walked.
//
// Several demands at once can encode a set cover, so no polynomial method is
// known. They are decided by a search (search.go) that fixes one host cell after
// the other, in or out. At each node every demand alone, and all of them added
// up, are bounded by greedy; a bound that is missed ends the node, a greedy set
// that meets all demands ends the search. Host cells that bring the same are
// interchangeable: when one is out, all are, which makes the search one over
// kinds of cells. PFs and VFs that exclude each other are branched on when a
// flow uses both, like cards together, for as long as that is cheap (draw.go). Then
// the ports are walked one by one, each a PF or its VFs, with every sum of supplies
// kept that no other exceeds (ports.go); and to the sum of all demands a port brings
// the better of the two. Every step is counted; when Budget is spent the answer is
// Undecided, with that reason, and never a guess.
//
// # What it prefers
//
// Among the placements that there are, in this order:
//
//  1. devices on the guest's own cells: every request if that can be had, else
//     one after the other;
//  2. cells of one socket, the cheapest; else sockets are left out one by one
//     while the rest will do (few, not always fewest);
//  3. the cheapest cells: for a guest of several cells the least sum (Hungarian
//     method), each cell priced by: does it have devices that this guest does
//     not want; how many whole cores are begun and not filled; how many
//     last-level caches are touched; how many CPUs stay free; how much memory
//     stays free: the tightest cell wins. With devices or networks the sum is
//     least among the cells that the search chose.
//  4. on the cell: whole cores of one last-level cache that has just enough,
//     odd threads on cores that are begun already, the emulator's CPU too.
//
// # Invariants
//
//   - Place gives a placement exactly when there is one, or says Undecided; the
//     placement keeps every rule of Machine and Request;
//   - Fits gives nil exactly when used + request ≤ ⌊(total − reserved) × ratio⌋
//     and request ≤ total, for each class;
//   - a refusal lists every reason, per host cell, in a fixed order; a class of
//     which nothing is asked is never a reason.
//
// The rules are Nova's (virt/hardware.py of 2026), where Nova keeps them: its own
// answers are wrong in some percent of guests with unequal cells.
package fit
