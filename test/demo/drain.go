package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"berth/agent/api"
	"berth/test/guest"
)

// drain empties host-a: first the plan, with what is in the way, then the moves.
func (d *demo) drain(ctx context.Context) error {
	d.out.act("host-a is to get new memory: drain it")
	a, err := d.f.Host("host-a")
	if err != nil {
		return err
	}
	b, err := d.f.Host("host-b")
	if err != nil {
		return err
	}
	g, err := guest.Build(ctx, "")
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, name := range []string{"mate", "cook"} {
		xml := guest.DomainXML(guest.Options{Name: name, Guest: g, Beat: 200 * time.Millisecond})
		if err := os.WriteFile(a.Path("/var/lib/libvirt/"+name+".xml"), []byte(xml), 0o644); err != nil {
			return err
		}
		if err := d.show(ctx, "host-a", "instance", "create", name, "--flavor", "small", "--xml", "/var/lib/libvirt/"+name+".xml", "--start"); err != nil {
			return err
		}
	}
	for _, name := range []string{"mate", "cook"} {
		if _, err := guest.WaitBeat(waiting, a.Console(name), 2); err != nil {
			return fmt.Errorf("wait for %s's heartbeat: %w", name, err)
		}
	}
	if d.pin {
		// The hole in the plan: host-b's one dedicated CPU is another's for the moment.
		xml := guest.DomainXML(guest.Options{Name: "stoker", Guest: g, Beat: 200 * time.Millisecond})
		if err := os.WriteFile(b.Path("/var/lib/libvirt/stoker.xml"), []byte(xml), 0o644); err != nil {
			return err
		}
		if err := d.show(ctx, "host-b", "instance", "create", "stoker", "--flavor", "pinned", "--xml", "/var/lib/libvirt/stoker.xml"); err != nil {
			return err
		}
		d.out.say("first the plan: every guest, where it would go, and what is in the way of one that would stay")
		// 7: one of them could go nowhere yet.
		if code, err := d.showCode(ctx, "host-a", "host", "drain", "--plan"); err != nil || code != 7 {
			return cmp.Or(err, fmt.Errorf("the plan of a drain that leaves one behind exits with %d, want 7", code))
		}
		d.out.good("exit code 7: the plan says that gunner could go nowhere yet, and nothing has begun")
		d.out.detail("stoker gives its CPU back:")
		if err := d.show(ctx, "host-b", "instance", "delete", "stoker"); err != nil {
			return err
		}
	}
	if err := d.show(ctx, "host-a", "host", "drain", "--yes"); err != nil {
		return err
	}
	if err := d.look(ctx, "host-b", "instance", "list"); err != nil {
		return err
	}
	if err := d.empty(ctx, "host-a"); err != nil {
		return err
	}
	d.out.good("host-a is empty, takes no new guest, and may be switched off; `berth host set --enable` opens it again")
	return nil
}

// empty requires that nothing is claimed on a host any more.
func (d *demo) empty(ctx context.Context, host string) error {
	var l api.ClaimList
	if err := d.f.JSON(ctx, host, &l, "claim", "list"); err != nil {
		return err
	}
	if len(l.Claims) > 0 {
		return fmt.Errorf("%s was drained, and still holds %d claims: %+v", host, len(l.Claims), l.Claims)
	}
	return nil
}
