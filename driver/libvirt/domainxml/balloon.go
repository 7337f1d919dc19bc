package domainxml

import (
	"strconv"
	"strings"
)

// CurrentMemoryMB is what the guest's balloon leaves it, MiB rounded up
// (currentMemory): while it runs, what its balloon says. It is MemoryMB where the
// guest has no balloon, or one that gives memory back by itself (autodeflate).
func (d *Doc) CurrentMemoryMB() int64 {
	balloon := d.root.FindElement("./devices/memballoon")
	e := d.root.SelectElement("currentMemory")
	if e == nil || balloon == nil || balloon.SelectAttrValue("model", "") == "none" || balloon.SelectAttrValue("autodeflate", "") == "on" {
		return d.memoryMB
	}
	n, err := strconv.ParseUint(strings.TrimSpace(e.Text()), 10, 64)
	unit, known := units[e.SelectAttrValue("unit", "")]
	const mib = 1 << 20
	if err != nil || !known || n > 1<<62/unit {
		return d.memoryMB
	}
	return min(int64((n*unit+mib-1)/mib), d.memoryMB)
}
