package config

import (
	"fmt"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/migration/options"
)

// Metrics is where this agent's metrics are read.
type Metrics struct {
	Listen string `toml:"listen"` // ADDRESS:PORT, over plain HTTP; empty for none
}

// Live is what the configuration says of live migrations. What is as it would be anyway
// counts as not said; see options.Merge.
func (m Migration) Live() options.Live {
	o := options.Live{
		Bandwidth: uint64(m.Bandwidth), PostCopyBandwidth: uint64(m.PostCopyBandwidth), AvailableSwitchover: uint64(m.AvailableSwitchover),
		MaxDowntime: m.MaxDowntime.D(), DowntimeSteps: m.DowntimeSteps, DowntimeDelay: m.DowntimeDelay.D(),
		AutoConverge: on(m.AutoConverge), AutoConvergeInitial: m.AutoConvergeInitial, AutoConvergeIncrement: m.AutoConvergeIncrement,
		Parallel: m.Parallel, ZeroCopy: on(m.ZeroCopy),
		Compression: slices.Clone(m.Compression), XBZRLECache: uint64(m.XBZRLECache),
		MTLevel: m.MTLevel, MTThreads: m.MTThreads, MTUnpack: m.MTUnpack, ZlibLevel: m.ZlibLevel, ZstdLevel: m.ZstdLevel,
		Timeout: m.Timeout.D(), TimeoutPerGiB: m.TimeoutPerGiB.D(), TimeoutAction: options.Action(m.TimeoutAction), StallTimeout: m.StallTimeout.D(),
		PostCopy: on(m.PostCopy), CopyStorage: m.CopyStorage, SynchronousWrites: on(m.SynchronousWrites), DetectZeroes: on(m.DetectZeroes),
		Schedule: m.Schedule, Observe: on(m.Observe),
	}
	if len(o.Compression) == 0 {
		o.Compression = nil
	}
	return o
}

// on is a switch that is off unless somebody says otherwise: false says nothing.
func on(yes bool) options.Switch {
	if yes {
		return options.On
	}
	return options.Unsaid
}

// optionFaults are those of options of live migrations: each by itself, then of all of them
// together.
func (m Migration) optionFaults() []fault.Reason {
	var out []fault.Reason
	bad := func(key, have, want string) {
		out = append(out, fault.Reason{
			Code: "config_value", Message: fmt.Sprintf("migration.%s = %s: want %s", key, have, want), Want: want, Have: have, Change: "correct migration." + key,
		})
	}
	said := m.Live()
	for _, b := range said.OutOfBounds() {
		have := quote(b.Have)
		if b.Option.Kind == options.KindNumber || b.Option.Kind == options.KindPercent {
			have = b.Have
		}
		bad(b.Option.Key, have, b.Want)
	}
	// A dead link is not told from a slow one sooner; and nothing is said by 0.
	if m.StallTimeout >= 0 && m.StallTimeout < Duration(time.Second) {
		bad("stall_timeout", quote(m.StallTimeout), "at least 1s")
	}
	if m.MaxPerLink < 0 || m.MaxPerLink > mostMoves {
		bad("max_per_link", fmt.Sprint(m.MaxPerLink), fmt.Sprintf("a number from 1 to %d, or 0 for no bound", mostMoves))
	}
	if len(out) > 0 {
		return out
	}
	merged, _ := options.Merge(options.Layer{From: options.FromConfig, Live: said})
	for _, r := range merged.Validate() {
		r.Code, r.Message = "config_value", "[migration]: "+r.Message
		out = append(out, r)
	}
	return out
}
