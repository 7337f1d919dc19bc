//go:build native

package native

import (
	"fmt"

	lv "libvirt.org/go/libvirt"

	"berth/driver/libvirt"
)

func (c *conn) Migrate(uuid, uri string, params []libvirt.Param, flags uint32) error {
	p, err := parameters(params)
	if err != nil {
		return err
	}
	return c.order(uuid, func(d *lv.Domain) error { return d.MigrateToURI3(uri, p, lv.DomainMigrateFlags(flags)) })
}

// parameters puts the typed parameters into the binding's own form.
func parameters(params []libvirt.Param) (*lv.DomainMigrateParameters, error) {
	p := &lv.DomainMigrateParameters{}
	texts := map[string]func(string){
		"destination_xml": func(s string) { p.DestXMLSet, p.DestXML = true, s },
		"persistent_xml":  func(s string) { p.PersistXMLSet, p.PersistXML = true, s },
		"migrate_uri":     func(s string) { p.URISet, p.URI = true, s },
		"disks_uri":       func(s string) { p.DisksURISet, p.DisksURI = true, s },
		"migrate_disks":   func(s string) { p.MigrateDisksSet, p.MigrateDisks = true, append(p.MigrateDisks, s) },
	}
	for _, x := range params {
		switch v := x.Value.(type) {
		case string:
			if set := texts[x.Name]; set != nil {
				set(v)
				continue
			}
		case uint64:
			if x.Name == "bandwidth" {
				p.BandwidthSet, p.Bandwidth = true, v
				continue
			}
		case int:
			if x.Name == "parallel.connections" {
				p.ParallelConnectionsSet, p.ParallelConnections = true, v
				continue
			}
		}
		return nil, &libvirt.Error{Code: int(lv.ERR_INVALID_ARG), Message: fmt.Sprintf("parameter %s is a %T", x.Name, x.Value)}
	}
	return p, nil
}

// JobStats gives the parameters under libvirt's names, as they come over the wire.
func (c *conn) JobStats(uuid string, flags uint32) (int, map[string]any, error) {
	j, err := with(c, uuid, func(d *lv.Domain) (*lv.DomainJobInfo, error) {
		return d.GetJobStats(lv.DomainGetJobStatsFlags(flags))
	})
	if err != nil {
		return 0, nil, err
	}
	out := map[string]any{}
	for _, n := range []struct {
		name  string
		set   bool
		value uint64
	}{
		{"time_elapsed", j.TimeElapsedSet, j.TimeElapsed},
		{"downtime", j.DowntimeSet, j.Downtime},
		{"setup_time", j.SetupTimeSet, j.SetupTime},
		{"memory_total", j.MemTotalSet, j.MemTotal},
		{"memory_processed", j.MemProcessedSet, j.MemProcessed},
		{"memory_remaining", j.MemRemainingSet, j.MemRemaining},
		{"memory_bps", j.MemBpsSet, j.MemBps},
		{"memory_dirty_rate", j.MemDirtyRateSet, j.MemDirtyRate},
		{"memory_page_size", j.MemPageSizeSet, j.MemPageSize},
		{"memory_iteration", j.MemIterationSet, j.MemIteration},
		{"disk_total", j.DiskTotalSet, j.DiskTotal},
		{"disk_processed", j.DiskProcessedSet, j.DiskProcessed},
		{"disk_remaining", j.DiskRemainingSet, j.DiskRemaining},
		{"disk_bps", j.DiskBpsSet, j.DiskBps},
	} {
		if n.set {
			out[n.name] = n.value
		}
	}
	if j.ErrorMessageSet {
		out["errmsg"] = j.ErrorMessage
	}
	return int(j.Type), out, nil
}
