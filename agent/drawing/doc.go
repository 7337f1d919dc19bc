// Package drawing makes a picture of a host and of who holds what of it: cells, cores and
// CPUs, memory and huge pages, PCI functions, and the guests that have them.
//
// Of gives the picture as values, from the hardware and the claims; Text draws it for a
// terminal, SVG for a page. All three are pure: the same values give the same bytes. It
// decides nothing and counts only what it is given, so that a picture cannot say otherwise
// than `berth claim list`.
package drawing
