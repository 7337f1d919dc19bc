package drivertest

import (
	"testing"

	"github.com/google/uuid"

	"berth/driver"
	"berth/internal/fault"
)

// Wiring is what a host has that guests are connected to.
type Wiring struct {
	Network driver.Network // an active one, with all that is to be read of it
	Off     string         // a network that is not active; empty where there is none
	Pool    driver.Pool    // a persistent one, active or not, with all that is to be read of it but that
	Volume  driver.Volume  // of the pool
	// Put makes a volume of the pool beside the hypervisor; nil where nobody can.
	Put func(t testing.TB, name string)
	// Secret has a UUID, a type and a usage.
	Secret driver.SecretRef
}

func connections() []property {
	return []property{
		{"Connections_NetworksAreRead", func(t testing.TB, b *bench) {
			c, w := found(t, b.d, driver.Connections), b.Wired(t)
			n, err := c.Network(within(t), w.Network.Name)
			must(t, "Network", err)
			if n.Name != w.Network.Name || n.Active != w.Network.Active || n.Autostart != w.Network.Autostart || n.Bridge != w.Network.Bridge ||
				len(n.PortGroups) != len(w.Network.PortGroups) {
				t.Errorf("network %+v, want %+v", n, w.Network)
			}
			if w.Off != "" {
				off, err := c.Network(within(t), w.Off)
				must(t, "Network that is not active", err)
				if off.Active {
					t.Errorf("network %+v is active", off)
				}
			}
			_, err = c.Network(within(t), "conf-none")
			wantKind(t, "Network of nothing", err, fault.NotFound)
		}},
		{"Connections_PoolsOpenAndClose", func(t testing.TB, b *bench) {
			c, w := found(t, b.d, driver.Connections), b.Wired(t)
			pool := func(active bool) {
				t.Helper()
				p, err := c.Pool(within(t), w.Pool.Name)
				must(t, "Pool", err)
				want := w.Pool
				if want.Active = active; p != want {
					t.Fatalf("pool %+v, want %+v", p, want)
				}
			}
			for range 2 {
				must(t, "OpenPool", c.OpenPool(within(t), w.Pool.Name))
				pool(true)
			}
			v, err := c.Volume(within(t), w.Pool.Name, w.Volume.Name)
			must(t, "Volume", err)
			if v != w.Volume {
				t.Errorf("volume %+v, want %+v", v, w.Volume)
			}
			for range 2 {
				must(t, "ClosePool", c.ClosePool(within(t), w.Pool.Name))
				pool(false)
			}
			_, err = c.Volume(within(t), w.Pool.Name, w.Volume.Name)
			wantKind(t, "Volume of a pool that is not active", err, fault.Invalid)
			must(t, "OpenPool again", c.OpenPool(within(t), w.Pool.Name))
			pool(true)
		}},
		{"Connections_WhatIsNotThereIsNotFound", func(t testing.TB, b *bench) {
			c, w := found(t, b.d, driver.Connections), b.Wired(t)
			_, err := c.Pool(within(t), "conf-none")
			wantKind(t, "Pool of nothing", err, fault.NotFound)
			wantKind(t, "OpenPool of nothing", c.OpenPool(within(t), "conf-none"), fault.NotFound)
			wantKind(t, "ClosePool of nothing", c.ClosePool(within(t), "conf-none"), fault.NotFound)
			_, err = c.Volume(within(t), "conf-none", w.Volume.Name)
			wantKind(t, "Volume of no pool", err, fault.NotFound)
			must(t, "OpenPool", c.OpenPool(within(t), w.Pool.Name))
			_, err = c.Volume(within(t), w.Pool.Name, "conf-none")
			wantKind(t, "Volume of nothing", err, fault.NotFound)
		}},
		{"Connections_VolumesShowWhenTheirPoolIsReadAgain", func(t testing.TB, b *bench) {
			c, w := found(t, b.d, driver.Connections), b.Wired(t)
			must(t, "OpenPool", c.OpenPool(within(t), w.Pool.Name))
			name := "conf-" + uuid.NewString()[:8]
			w.Put(t, name)
			must(t, "OpenPool again", c.OpenPool(within(t), w.Pool.Name))
			_, err := c.Volume(within(t), w.Pool.Name, name)
			must(t, "Volume", err)
		}},
		{"Connections_SecretsAreFound", func(t testing.TB, b *bench) {
			c, w := found(t, b.d, driver.Connections), b.Wired(t)
			must(t, "Secret by uuid", c.Secret(within(t), driver.SecretRef{UUID: w.Secret.UUID}))
			must(t, "Secret by usage", c.Secret(within(t), driver.SecretRef{Type: w.Secret.Type, Usage: w.Secret.Usage}))
			wantKind(t, "Secret of nothing", c.Secret(within(t), driver.SecretRef{UUID: uuid.NewString()}), fault.NotFound)
			wantKind(t, "Secret for nothing", c.Secret(within(t), driver.SecretRef{Type: w.Secret.Type, Usage: "conf-none"}), fault.NotFound)
		}},
	}
}
