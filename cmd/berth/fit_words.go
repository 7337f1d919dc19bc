package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/claims/fitcase"
	"berth/internal/screen"
	"berth/topology"
)

// fitTable says an answer to an operator.
func fitTable(w io.Writer, c *fitcase.Case, a fitcase.Answer) {
	took := time.Duration(a.NS).Round(time.Microsecond)
	switch {
	case a.Refused != "":
		fmt.Fprintf(w, "REFUSED: the flavor or the image is at fault, whatever the host\n  - %s\n", strings.ReplaceAll(a.Refused, "; ", "\n  - "))
		return
	case a.Undecided:
		fmt.Fprintf(w, "UNDECIDED after %s\n", took)
	case a.Fits:
		fmt.Fprintf(w, "FITS (found in %s)\n", took)
		placementTable(w, a)
		return
	default:
		fmt.Fprintf(w, "DOES NOT FIT (found in %s)\n", took)
	}
	for _, r := range a.Reasons {
		fmt.Fprintf(w, "  - %s\n", r.Message)
	}
	if len(a.Changes) == 0 {
		return
	}
	fmt.Fprintln(w, "\nAny one of these would do:")
	for i, change := range a.Changes {
		fmt.Fprintf(w, "  %d. %s\n", i+1, strings.Join(c.Words(change), "\n     and "))
	}
}

func placementTable(w io.Writer, a fitcase.Answer) {
	if a.Topology == nil {
		fmt.Fprintln(w, "It has no NUMA topology, and floats over the host.")
	} else {
		fmt.Fprintln(w)
		screen.Row(w, "GUEST CELL", "HOST CELL", "VCPUS", "PINS (VCPU:CPU)", "EMULATOR", "MEMORY", "PAGES")
	}
	for _, cell := range a.Cells {
		t := a.Topology.Cells[cell.GuestCell]
		var floats []string
		if t.Shared != "" {
			floats = append(floats, t.Shared+" shared")
		}
		if t.Dedicated != "" {
			floats = append(floats, t.Dedicated+" dedicated")
		}
		pages := "ordinary"
		if cell.PageSize != nil {
			pages = (topology.PageSize(*cell.PageSize) << 10).String()
		}
		screen.Row(w, cell.GuestCell, cell.HostCell, strings.Join(floats, ", "), pins(cell.Pinning), cell.Reserved, fmt.Sprintf("%d MiB", t.MemoryMB), pages)
	}
	if len(a.PCI) == 0 {
		return
	}
	fmt.Fprintln(w)
	screen.Row(w, "PCI REQUEST", "FUNCTIONS", "ID", "TYPE", "CELL")
	for _, p := range a.PCI {
		cell := "?"
		if p.Node != nil {
			cell = strconv.Itoa(*p.Node)
		}
		screen.Row(w, p.Request, p.Count, p.Vendor+":"+p.Product, p.Type, cell)
	}
}

// pins writes pins in the order of vCPUs.
func pins(pinning map[string]int) string {
	vcpus := make([]int, 0, len(pinning))
	for v := range pinning {
		if n, err := strconv.Atoi(v); err == nil {
			vcpus = append(vcpus, n)
		}
	}
	slices.Sort(vcpus)
	out := make([]string, len(vcpus))
	for i, v := range vcpus {
		out[i] = fmt.Sprintf("%d:%d", v, pinning[strconv.Itoa(v)])
	}
	return strings.Join(out, " ")
}
