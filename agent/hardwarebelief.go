package agent

import (
	"slices"
	"strings"

	"berth/claims"
	"berth/hwdiscovery"
	"berth/internal/fault"
	"berth/topology"
)

// doubts says why a reading may not replace the last good one; none for one that
// may. A reading without a fault always may, however much smaller the host is: the
// kernel took something out, and said the same everywhere. good is what is
// believed, nil where that is from before the machine was booted: what it was made
// of may be another thing since.
func doubts(got, good *topology.Host) []fault.Reason {
	var out []fault.Reason
	for _, r := range got.Reasons {
		// A file of one device takes no cell's CPUs or memory away.
		if r.Degrades && r.Device == nil && strings.HasPrefix(r.Code, "file_") {
			out = append(out, fault.Reason{Code: r.Code, Message: r.Message, Change: "repair what cannot be read; it is read again by itself"})
		}
	}
	if good == nil || !smaller(got, good) {
		return out
	}
	for _, r := range got.Reasons {
		// What contradicted itself when more was believed has nothing to do with
		// what is missing since.
		old := slices.ContainsFunc(good.Reasons, func(o topology.Reason) bool { return o.Code == r.Code && o.Message == r.Message })
		if r.Degrades && r.Device == nil && !strings.HasPrefix(r.Code, "file_") && !old {
			out = append(out, fault.Reason{
				Code: r.Code, Message: r.Message + "; and this host has less than before",
				Change: "repair it, or reboot the machine if it was changed; it is read again by itself",
			})
		}
	}
	return out
}

// smaller says that a host has fewer CPUs, cells or huge pages of a size than
// another, or less memory.
func smaller(got, good *topology.Host) bool {
	if got.CPUs().Len() < good.CPUs().Len() || len(got.Cells) < len(good.Cells) || got.MemoryBytes() < good.MemoryBytes() {
		return true
	}
	was, is := hugePages(good), hugePages(got)
	for size, n := range was {
		if is[size] < n {
			return true
		}
	}
	return false
}

func hugePages(h *topology.Host) topology.Pages {
	sum := topology.Pages{}
	for _, c := range h.Cells {
		for size, n := range c.Pages {
			if size != h.BasePageSize {
				sum[size] += n
			}
		}
	}
	return sum
}

// blameLocked adds what the kernel said of devices to what their files say.
func (h *hardware) blameLocked(got *topology.Host) {
	for i := range got.PCI {
		address := got.PCI[i].Address
		words, lost := h.lost[address]
		if pf := got.PCI[i].PhysFn; !lost && pf != nil {
			if words, lost = h.lost[*pf]; lost {
				words += ", with its physical function " + pf.String()
			}
		}
		said := slices.ContainsFunc(got.Reasons, func(r topology.Reason) bool {
			return r.Code == hwdiscovery.CodeDead && r.Device != nil && *r.Device == address
		})
		if !lost || said {
			continue
		}
		got.Health = topology.HealthDegraded
		got.Reasons = slices.Insert(got.Reasons, 0, topology.Reason{
			Code: hwdiscovery.CodeDead, Message: "device " + address.String() + ": " + words, Device: &address, Degrades: true,
		})
	}
}

// missing are the devices that are believed to be there and that the last reading
// does not have: it was not believed as a whole, and nobody shall be given what it
// may be right about.
func missing(believed, now *topology.Host) []claims.Unusable {
	if believed == nil || now == nil || believed == now {
		return nil
	}
	var out []claims.Unusable
	for _, d := range believed.PCI {
		if _, ok := now.Device(d.Address); !ok {
			out = append(out, claims.Unusable{Device: &d.Address, Reason: "the last reading of the hardware does not have it"})
		}
	}
	return out
}

// deadReasons name each guest that holds a device which does not work any more.
func deadReasons(now *topology.Host, list []claims.Claim, name func(instance string) string) []fault.Reason {
	if now == nil {
		return nil
	}
	var out []fault.Reason
	for _, r := range now.Reasons {
		if r.Code != hwdiscovery.CodeDead {
			continue
		}
		for _, c := range list {
			if slices.ContainsFunc(c.Assignment.Devices, func(d topology.AssignedDevice) bool { return d.Address == *r.Device }) {
				out = append(out, fault.Reason{
					Code: "held_and_dead", Message: "guest " + name(c.Owner.Instance) + " holds " + r.Message,
					Have: r.Device.String(), Change: "move the guest away, then reset or replace the device",
				})
			}
		}
	}
	return out
}

// goneDevices are the devices that claims hold and the host has not; of those
// that the ledger's own audit found (known) each is named once.
func goneDevices(believed *topology.Host, list []claims.Claim, known []claims.Lost) []claims.Lost {
	if believed == nil {
		return nil
	}
	var out []claims.Lost
	for _, c := range list {
		for _, d := range c.Assignment.Devices {
			same := func(l claims.Lost) bool {
				return l.Device != nil && *l.Device == d.Address && l.Instance == c.Owner.Instance
			}
			if _, there := believed.Device(d.Address); !there && !slices.ContainsFunc(known, same) && !slices.ContainsFunc(out, same) {
				address := d.Address
				out = append(out, claims.Lost{Instance: c.Owner.Instance, Device: &address})
			}
		}
	}
	return out
}
