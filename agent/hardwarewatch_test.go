package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"berth/driver"
	"berth/migration"
	"berth/placementclient"
	"berth/topology"
)

// TestHardware_FollowsWithinTwoSeconds changes a machine's files as its kernel
// would, tells of it as the kernel or libvirt would, and requires that ledger and
// Placement follow within two seconds of scripted time, with no restart.
func TestHardware_FollowsWithinTwoSeconds(t *testing.T) {
	t.Parallel()
	for name, story := range map[string]func(b *hardwareBench){
		"a PCI device is plugged in and taken out": func(b *hardwareBench) {
			b.plug("0000:5e:00.0", 0, 0)
			b.event("add", "pci", "PCI_SLOT_NAME=0000:5e:00.0")
			b.within("a claim can have it", func() bool { return b.free() == 2 })
			b.unplug("0000:5e:00.0")
			b.event("remove", "pci", "PCI_SLOT_NAME=0000:5e:00.0")
			b.within("no claim can have it", func() bool { return b.free() == 1 })
			for _, line := range []string{"device 0000:5e:00.0 added (0x8086:0x1563)", "device 0000:5e:00.0 removed"} {
				if strings.Count(b.log.String(), line) != 1 {
					b.Errorf("not logged once: %s\n%s", line, b.log)
				}
			}
		},
		"a PCI device that a guest holds is taken out": func(b *hardwareBench) {
			c := b.mustClaim(tenant, nil, "1563", 1)
			b.unplug(card)
			b.event("remove", "pci", "PCI_SLOT_NAME="+card)
			b.within("it is named", func() bool { return b.named("held_and_lost", card) })
			b.kept(c)
			if _, err := b.claim(second, nil, "1563", 1); err == nil {
				b.Error("a new claim got what is not there")
			}
		},
		"a PCI device that a guest holds dies": func(b *hardwareBench) {
			b.virtual(2)
			b.event("add", "pci")
			b.within("its functions can be had", func() bool { return b.free() == 3 })
			c := b.mustClaim(tenant, nil, "1565", 1)
			b.put(pciPath(card, "config"), "\xff\xff\xff\xff")
			b.event("change", "pci", "PCI_SLOT_NAME="+card)
			b.within("it is named", func() bool { return b.named("held_and_dead", card) })
			b.kept(c)
			if n := b.free(); n != 0 {
				b.Errorf("%d functions of it can still be had", n)
			}
		},
		"a PCI device meets an error and recovers": func(b *hardwareBench) {
			b.event("change", "pci", "PCI_SLOT_NAME="+card, "ERROR_EVENT=BEGIN_RECOVERY", "DEVICE_ONLINE=0")
			b.within("no claim can have it", func() bool { return b.free() == 0 && !b.a.hardware.sound() })
			b.event("change", "pci", "PCI_SLOT_NAME="+card, "ERROR_EVENT=SUCCESSFUL_RECOVERY", "DEVICE_ONLINE=1")
			b.within("a claim can have it again", func() bool { return b.free() == 1 })
		},
		"a PCI device with virtual functions meets an error": func(b *hardwareBench) {
			b.virtual(2)
			b.event("add", "pci")
			b.within("its functions can be had", func() bool { return b.free() == 3 })
			b.event("change", "pci", "PCI_SLOT_NAME="+card, "ERROR_EVENT=BEGIN_RECOVERY", "DEVICE_ONLINE=0")
			b.within("no claim can have any", func() bool { return b.free() == 0 })
			b.event("change", "pci", "PCI_SLOT_NAME="+card, "ERROR_EVENT=SUCCESSFUL_RECOVERY", "DEVICE_ONLINE=1")
			b.within("claims can have all again", func() bool { return b.free() == 3 })
		},
		"virtual functions are made and fewer": func(b *hardwareBench) {
			for _, n := range []int{8, 0, 4} {
				b.virtual(n)
				b.event("change", "pci", "PCI_SLOT_NAME="+card)
				// The card itself can be had while none of its functions is.
				b.within("the pools follow", func() bool { return b.free() == n+1 })
			}
		},
		"a guest takes a virtual function and gives it back": func(b *hardwareBench) {
			b.virtual(2)
			b.event("add", "pci")
			b.within("its functions can be had", func() bool { return b.free() == 3 })
			const pf = "CUSTOM_PCI_8086_1563"
			b.mustClaim(tenant, nil, "1565", 1)
			b.within("Placement gives the card itself to nobody", func() bool { return b.reserved(pf) == 1 })
			if err := b.a.tracker.Abort(b.Context(), migration.Ref{Instance: tenant}); err != nil {
				b.Fatal(err)
			}
			b.within("Placement has it again", func() bool { return b.reserved(pf) == 0 })
		},
		"CPUs go offline and come back": func(b *hardwareBench) {
			b.online(0, 1, 2)
			b.event("offline", "cpu")
			b.within("Placement has fewer", func() bool { return b.total("PCPU") == 2 })
			if n := b.a.tracker.Usage().Free.PCPUs; n != 2 {
				b.Errorf("%d dedicated CPUs free in the ledger", n)
			}
			b.online(0, 1, 2, 3)
			b.event("online", "cpu")
			b.within("Placement has all", func() bool { return b.total("PCPU") == 3 && b.a.tracker.Usage().Free.PCPUs == 3 })
		},
		"a CPU goes offline of which nobody hears an event": func(b *hardwareBench) {
			b.online(0, 1, 2)
			b.within("Placement has fewer", func() bool { return b.total("PCPU") == 2 })
		},
		"a CPU that a guest is pinned to goes offline": func(b *hardwareBench) {
			c := b.mustClaim(tenant, pins(2, 64), "", 0)
			b.online(0, 1)
			b.event("offline", "cpu")
			b.within("it is named", func() bool { return b.named("held_and_lost", "2-3") })
			b.kept(c)
			b.within("Placement has one", func() bool { return b.total("PCPU") == 1 })
			if _, err := b.claim(second, pins(1, 2), "", 0); err == nil {
				b.Error("a new claim got what is not there")
			}
		},
		"CPUs go that Placement has given away": func(b *hardwareBench) {
			given := placementclient.Allocations{
				Allocations: map[string]placementclient.Resources{b.a.uuid: {"PCPU": 3}}, ProjectID: "p", UserID: "u", ConsumerType: placementclient.ConsumerInstance,
			}
			if err := b.placement.PutAllocations(b.Context(), tenant, given); err != nil {
				b.Fatal(err)
			}
			b.online(0, 1, 2)
			b.event("offline", "cpu")
			b.within("fewer than are given away", func() bool { return b.total("PCPU") == 2 })
			// The last ones go, and memory comes: the class must stay for those that
			// have it, and must not keep the memory from being told.
			b.online(0)
			b.memory(0, 2<<20)
			b.put("proc/meminfo", "MemTotal: 3145728 kB\nMemFree: 1048576 kB\n")
			b.event("offline", "cpu")
			b.within("the memory is told", func() bool { return b.total("MEMORY_MB") == 3072 })
			inv, err := b.placement.Inventories(b.Context(), b.a.uuid)
			if p := inv.Inventories["PCPU"]; err != nil || p.Total != 2 || p.Reserved != 2 {
				b.Errorf("dedicated CPUs in Placement: %+v, %v; want both reserved", p, err)
			}
			s := b.a.reporter.Status()
			if s.Err != nil || !s.InSync || !slices.Equal(s.Kept, []string{"PCPU"}) {
				b.Errorf("reporting stands at %+v", s)
			}
			writes := s.Writes
			if err := b.a.reporter.Sync(b.Context()); err != nil {
				b.Error(err)
			}
			if s := b.a.reporter.Status(); s.Writes != writes || s.Generation != inv.Generation {
				b.Errorf("%d writes, generation %d to %d: want none while they are given away", s.Writes-writes, inv.Generation, s.Generation)
			}
			b.online(0, 1, 2, 3)
			b.event("online", "cpu")
			b.within("all are there again", func() bool { return b.total("PCPU") == 3 && len(b.a.reporter.Status().Kept) == 0 })
			// They go once more, and then so do the guests.
			b.online(0)
			b.event("offline", "cpu")
			b.within("it is kept again", func() bool { return len(b.a.reporter.Status().Kept) == 1 })
			if err := b.placement.DeleteAllocations(b.Context(), tenant); err != nil {
				b.Fatal(err)
			}
			// Every second interval it is asked whether they are still given away.
			before := b.a.reporter.Status().Writes
			for range 3 {
				if err := b.a.reporter.Sync(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			if s := b.a.reporter.Status(); b.total("PCPU") != 0 || len(s.Kept) != 0 || !s.InSync || s.Writes != before+1 {
				b.Errorf("%d dedicated CPUs in Placement that nobody has, %d writes: %+v", b.total("PCPU"), s.Writes-before, s)
			}
		},
		"pages are added to a pool": func(b *hardwareBench) {
			b.pool(64, 128)
			b.within("claims can have them", func() bool { return b.pagesFree(1) == 128 })
			b.mustClaim(tenant, pins(1, 256), "", 0)
			if !strings.Contains(b.log.String(), "cell 1 pages of 2MiB 64 → 128") {
				b.Errorf("not logged:\n%s", b.log)
			}
		},
		"a pool gets smaller than what is claimed of it": func(b *hardwareBench) {
			c := b.mustClaim(tenant, pins(2, 100), "", 0) // 50 pages of cell 1, which alone has two such CPUs
			b.pool(64, 20)
			b.within("it is named", func() bool { return b.named("pages_over", "cell 1: 30 more than there are") })
			b.kept(c)
			if n := b.pagesFree(1); n != 0 {
				b.Errorf("%d pages free", n)
			}
			b.pool(64, 60)
			b.within("pages are usable at once", func() bool { return b.pagesFree(1) == 10 && !b.named("pages_over", "") })
		},
		"a pool moves from one cell to another": func(b *hardwareBench) {
			b.pool(32, 96)
			b.within("both are seen", func() bool { return b.pagesFree(0) == 32 && b.pagesFree(1) == 96 })
		},
		"memory is added": func(b *hardwareBench) {
			b.memory(0, 2<<20)
			b.put("proc/meminfo", "MemTotal: 3145728 kB\nMemFree: 1048576 kB\n")
			b.event("online", "memory")
			b.within("Placement has it", func() bool {
				return b.total("MEMORY_MB") == 3072 && b.a.tracker.Usage().Capacity.Total.MemoryMB == 3072
			})
		},
		"a cell's file is unreadable while a CPU goes": func(b *hardwareBench) {
			meminfo := b.node(1, "meminfo")
			b.remove(meminfo)
			b.online(0, 1, 2)
			b.event("offline", "cpu")
			time.Sleep(5 * time.Second)
			if b.total("PCPU") != 3 || b.total("MEMORY_MB") != 2048 || b.a.tracker.Usage().Capacity.Total.MemoryMB != 2048 {
				b.Error("a read error made the host smaller")
			}
			if _, err := b.claim(tenant, pins(2, 4), "", 0); err == nil {
				b.Error("a claim got CPUs of a cell that cannot be read")
			}
			b.mustClaim(second, nil, "", 0) // others do not suffer
			b.memory(1, 1<<20)
			// It is read again by itself, ever more slowly; an event makes it soon.
			b.event("change", "node")
			b.within("the sound reading is believed", func() bool { return b.total("PCPU") == 2 })
		},
		"a file is unreadable for a moment": func(b *hardwareBench) {
			b.remove(b.node(1, "meminfo"))
			b.online(0, 1, 2)
			b.event("offline", "cpu")
			time.Sleep(200 * time.Millisecond)
			b.memory(1, 1<<20)
			b.within("it is read again by itself", func() bool { return b.total("PCPU") == 2 })
		},
		"folders vanish as a whole": func(b *hardwareBench) {
			for _, dir := range []string{"sys", "sys/devices/system", "sys/devices/system/cpu", "sys/devices/system/node", "sys/bus/pci", "sys/bus/pci/devices"} {
				for _, empty := range []bool{false, true} {
					b.rename(dir, "away")
					if empty {
						b.put(dir+"/x", "")
						b.remove(dir + "/x")
					}
					b.event("change", "cpu")
					time.Sleep(5 * time.Second)
					u := b.a.tracker.Usage()
					if b.total("PCPU") != 3 || b.total("MEMORY_MB") != 2048 || u.Capacity.Total.PCPUs != 3 || len(b.a.tracker.Machine().Cells) != 2 {
						b.Errorf("%s: a folder that is not there made the host smaller: %+v", dir, u.Capacity.Total)
					}
					if n := b.free(); n != 0 && strings.Contains(dir, "pci") {
						b.Errorf("%s: %d devices can be had that may be gone", dir, n)
					}
					if good, _, why := b.a.hardware.view(); len(why) == 0 || len(good.PCI) != 1 {
						b.Errorf("%s: doubts %v, devices %v", dir, why, good.PCI)
					}
					b.remove(dir)
					b.rename("away", dir)
					b.event("change", "cpu")
					b.within("it is believed again", func() bool { return b.a.hardware.sound() && b.free() == 1 })
				}
			}
			if strings.Contains(b.log.String(), "hardware changed") {
				b.Error("a change was told")
			}
		},
		"any one file is unreadable or gone": func(b *hardwareBench) {
			b.virtual(2)
			b.event("add", "pci")
			b.within("virtual functions can be had", func() bool { return b.free() == 3 })
			before := b.totals()
			for _, name := range b.files() {
				for _, gone := range []bool{false, true} {
					b.rename(name, "away")
					if !gone {
						b.put(name+"/x", "") // a folder cannot be read as a file
					}
					b.event("change", "cpu")
					time.Sleep(5 * time.Second)
					now := b.totals()
					for what, was := range before {
						if now[what] < was {
							b.Errorf("%s (gone: %t): Placement has %d of %s, and had %d", name, gone, now[what], what, was)
						}
					}
					b.remove(name)
					b.rename("away", name)
					b.event("change", "cpu")
					b.within("it is believed again", func() bool { return b.a.hardware.sound() && b.free() == 3 })
				}
			}
		},
		"the kernel's events were lost": func(b *hardwareBench) {
			b.plug("0000:5e:00.0", 0, 0)
			b.a.hardware.missedUevents()
			b.within("a claim can have the device", func() bool { return b.free() == 2 })
		},
		"libvirt alone tells": func(b *hardwareBench) {
			b.plug("0000:5e:00.0", 0, 0)
			b.devices <- driver.DeviceEvent{Kind: driver.DeviceAdded, Name: "pci_0000_5e_00_0"}
			b.within("a claim can have the device", func() bool { return b.free() == 2 })
		},
		"libvirt's events end and are asked for again": func(b *hardwareBench) {
			b.devices <- driver.DeviceEvent{Name: streamEnds}
			b.plug("0000:5e:00.0", 0, 0)
			time.Sleep(devicesPause + settleMost)
			if n := b.free(); n != 2 {
				b.Errorf("what came meanwhile is not read: %d devices", n)
			}
			b.unplug("0000:5e:00.0")
			b.devices <- driver.DeviceEvent{Kind: driver.DeviceRemoved, Name: "pci_0000_5e_00_0"}
			b.within("it listens again", func() bool { return b.free() == 1 })
		},
		"libvirt asks for everything to be read again": func(b *hardwareBench) {
			b.plug("0000:5e:00.0", 0, 0)
			b.devices <- driver.DeviceEvent{Kind: driver.DeviceResync}
			b.within("a claim can have the device", func() bool { return b.free() == 2 })
		},
	} {
		t.Run(name, func(t *testing.T) { onMadeUpMachine(t, story) })
	}
}

// TestHardware_AStormIsReadFewTimesAndNotLate: 10,000 events over two seconds.
func TestHardware_AStormIsReadFewTimesAndNotLate(t *testing.T) {
	t.Parallel()
	onMadeUpMachine(t, func(b *hardwareBench) {
		b.plug("0000:5e:00.0", 0, 0)
		start, seen := time.Now(), time.Duration(0)
		_, last, _ := b.a.hardware.view()
		readings := 0
		for range 10_000 {
			b.event("change", "pci")
			time.Sleep(200 * time.Microsecond)
			if _, now, _ := b.a.hardware.view(); now != last {
				last, readings = now, readings+1
			}
			if seen == 0 && b.free() == 2 {
				seen = time.Since(start)
			}
		}
		if seen == 0 || seen > settleMost+50*time.Millisecond {
			b.Errorf("seen after %s, want half a second", seen)
		}
		if most := 5; readings == 0 || readings > most {
			b.Errorf("%d readings in %s, want at most %d", readings, time.Since(start), most)
		}
		b.Logf("seen after %s, %d readings", seen, readings)
	})
}

// TestHardware_NoiseIsNotRead: disks, keyboards and containers come and go.
func TestHardware_NoiseIsNotRead(t *testing.T) {
	onMadeUpMachine(t, func(b *hardwareBench) {
		_, before, _ := b.a.hardware.view()
		for _, s := range []string{"block", "usb", "net", "queues"} {
			b.event("add", s)
		}
		for _, name := range []string{"net_veth0_00_16_3e", "block_loop7", "usb_1_2", "drm_card0"} {
			b.devices <- driver.DeviceEvent{Kind: driver.DeviceAdded, Name: name}
		}
		b.put("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "1\n") // guests use pages all the time
		time.Sleep(5 * time.Second)
		if _, after, _ := b.a.hardware.view(); after != before {
			b.Error("the hardware was read again")
		}
	})
}

// TestHardware_AnUnsoundReadingIsMadeAgainEverMoreSlowly: a machine that is
// broken for good must not be read all day.
func TestHardware_AnUnsoundReadingIsMadeAgainEverMoreSlowly(t *testing.T) {
	t.Parallel()
	onMadeUpMachine(t, func(b *hardwareBench) {
		b.remove(b.node(1, "meminfo"))
		b.event("change", "node")
		readings := 0
		_, last, _ := b.a.hardware.view()
		for range 1800 {
			time.Sleep(time.Second)
			if _, now, _ := b.a.hardware.view(); now != last {
				last, readings = now, readings+1
			}
		}
		if readings < 8 || readings > 15 {
			b.Errorf("%d readings in half an hour", readings)
		}
		if good, _, why := b.a.hardware.view(); good.MemoryBytes() != 2<<30 || len(why) == 0 {
			b.Errorf("believed %d bytes, doubts %v", good.MemoryBytes(), why)
		}
		if n := strings.Count(b.log.String(), "is not believed"); n != 1 {
			b.Errorf("said %d times", n)
		}
		// News begin the pauses anew: what is being changed will soon be sound.
		b.online(0, 1, 2)
		b.event("offline", "cpu")
		time.Sleep(3 * time.Second) // the look at the pools has seen the CPU too
		b.memory(1, 1<<20)
		b.within("it is read again by itself", func() bool { return b.total("PCPU") == 2 })
	})
}

// TestHardware_ACardChangedForItsLikeIsNoticedInTime: serial numbers take a card
// up to a second to tell, and are read by the slow readings alone.
func TestHardware_ACardChangedForItsLikeIsNoticedInTime(t *testing.T) {
	onMadeUpMachine(t, func(b *hardwareBench) {
		serial := func() string {
			good, _, _ := b.a.hardware.view()
			return good.PCI[0].SerialNumber
		}
		every := b.a.config().Host.DiscoverEvery.D()
		b.put(pciPath(card, "vpd"), "\x90\x06\x00SN\x03A42\x78")
		b.event("change", "pci")
		time.Sleep(2 * time.Second)
		if s := serial(); s != "" {
			b.Errorf("a quick reading asked the card: %q", s)
		}
		time.Sleep(every)
		if s := serial(); s != "A42" {
			b.Errorf("serial number %q after %s", s, every)
		}
	})
}

func TestDifferences_SayWhatChangedAndNothingElse(t *testing.T) {
	cell := func(memory int64, pages topology.Pages) []topology.Cell {
		return []topology.Cell{{CPUs: topology.NewCPUSet(0), MemoryBytes: memory, Pages: pages}}
	}
	was := topology.Host{BasePageSize: 4096, Cells: cell(1<<30, topology.Pages{4096: 100, topology.PageSize2M: 8})}
	is := was
	is.Cells = cell(2<<30, topology.Pages{4096: 200, topology.PageSize2M: 16})
	is.Cells[0].MemoryFreeBytes = 77
	if got := strings.Join(differences(&was, &is), "; "); got != "cell 0 memory 1024 → 2048 MiB; cell 0 pages of 2MiB 8 → 16" {
		t.Error(got)
	}
	moving := was
	moving.Cells = cell(1<<30, topology.Pages{4096: 100, topology.PageSize2M: 8})
	moving.Cells[0].MemoryFreeBytes, moving.Cells[0].PagesFree = 5, topology.Pages{4096: 1}
	if got := differences(&was, &moving); len(got) > 0 {
		t.Errorf("only what is free moved, and it says %q", got)
	}
	other := was
	other.Cores = []topology.CPUSet{topology.NewCPUSet(0)}
	if got := differences(&was, &other); len(got) != 1 {
		t.Errorf("cores that are known now: %q", got)
	}
}
