package api

import (
	"fmt"
	"strings"

	"berth/agent/drawing"
	"berth/claims"
)

// Picture is a host as it is drawn: what it has, and who holds what by these claims. Of the
// instances those that run without a claim are named; they may be nil.
func Picture(h HostInfo, list []Claim, instances []Instance) drawing.Host {
	in := drawing.Input{Name: h.Name, Hardware: h.Topology}
	if u := h.Usage; u.Total.MemoryMB > 0 {
		in.Whole = &drawing.Whole{Total: u.Total, Reserved: u.Reserved, CPURatio: u.CPURatio, MemoryRatio: u.RAMRatio, DiskRatio: u.DskRatio}
	}
	for _, c := range h.Cells {
		room := drawing.Room{Cell: c.ID, Dedicated: c.Dedicated, Shared: c.Shared}
		for _, p := range c.Pages {
			room.Pools = append(room.Pools, drawing.Pool{Size: p.Size, Total: p.Total, Reserved: p.Reserved, Used: p.Used})
		}
		in.Rooms = append(in.Rooms, room)
		in.Devices = append(in.Devices, devicesToDraw(c.Devices)...)
	}
	in.Devices = append(in.Devices, devicesToDraw(h.Loose)...)
	claimed := map[string]bool{}
	for _, c := range list {
		claimed[c.Instance] = true
		in.Claims = append(in.Claims, drawing.Claim{
			Instance: c.Instance, Name: c.Name, Stands: stands(c), Resources: c.Resources, Assignment: c.Assignment, Forced: c.Forced,
		})
	}
	for _, i := range instances {
		if (i.State == "running" || i.State == "paused") && !claimed[i.UUID] {
			in.Unclaimed = append(in.Unclaimed, i.Name)
		}
	}
	return drawing.Of(in)
}

func devicesToDraw(list []HostDevice) []drawing.Device {
	var out []drawing.Device
	for _, d := range list {
		out = append(out, drawing.Device{Address: d.Address, Product: d.Vendor + ":" + d.Product, Type: d.Type, Unfit: strings.Join(d.Unfit, "; ")})
	}
	return out
}

// stands says what a claim is for, in a few words.
func stands(c Claim) string {
	move := ""
	if len(c.Migration) >= 8 {
		move = ", migration " + c.Migration[:8]
	}
	switch kind := claims.Kind(c.Kind); {
	case kind == claims.KindInstance && c.State == string(claims.Bound):
		return "lives here"
	case kind == claims.KindInstance:
		return "is being made"
	case c.State == string(claims.Held):
		return "kept for the way back" + move
	case kind == claims.KindLiveMigration, kind == claims.KindEvacuation:
		return "on its way here" + move
	case c.Context != nil && c.Context.Source != c.Context.Destination:
		return "on its way here" + move
	}
	return fmt.Sprintf("changes here (%s)%s", c.Kind, move)
}
