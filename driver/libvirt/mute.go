package libvirt

import (
	"context"
	"errors"
	"time"

	"berth/driver"
	"berth/internal/fault"
)

// A daemon may answer pings and nothing else: libvirtd has workers apart for what
// needs no guest (max_workers and prio_workers in libvirtd.conf), so that those
// live when all others wait for a guest's monitor or for storage that is gone. So
// what a list of all domains came to counts for Health too: unanswered for as long
// as a ping may be, it makes the driver unwell until a list is answered.

// heard notes what a list of domains, asked for at a moment, came to.
func (d *Driver) heard(began time.Time, err error) {
	silent := errors.Is(err, context.DeadlineExceeded) && d.rt.Now().Sub(began) >= d.o.PingTimeout
	if !silent && errors.Is(err, fault.Unavailable) {
		return // nothing learned: not connected, or its caller went
	}
	d.mu.Lock()
	was := d.mute
	switch {
	case !silent:
		d.mute = nil
	case was == nil:
		d.mute, d.muteSince = err, began
	}
	now := d.mute
	d.mu.Unlock()
	switch {
	case was == nil && now != nil:
		d.log.Warn("libvirt answers pings and nothing else", "uri", d.o.URI, "socket", d.socket(), "error", err)
	case was != nil && now == nil:
		d.log.Info("libvirt answers again", "uri", d.o.URI, "socket", d.socket())
	}
}

func (d *Driver) isMute() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mute != nil
}

// Domains implements driver.Driver. A patient caller does not wait longer than the
// driver's own deadline: what it would wait for is what makes the driver unwell.
func (d *Driver) Domains(ctx context.Context) ([]driver.Domain, error) {
	ctx, cancel := d.rt.WithTimeout(ctx, d.o.CallTimeout)
	defer cancel()
	began := d.rt.Now()
	list, err := do(ctx, d.control, request{verb: "list domains"}, domains)
	d.heard(began, err)
	return list, err
}
