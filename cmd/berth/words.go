package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"berth/placementclient"
	"berth/topology"
)

// size is bytes for people, with binary units.
func size[T ~int | ~int64 | ~uint64](n T) string {
	v, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%d B", int64(n))
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}

// rough is a duration as people say it.
func rough(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

// ago is how long since, or a dash for never.
func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return rough(time.Since(t).Round(time.Second)) + " ago"
}

func short(uuid string) string {
	if len(uuid) > 8 {
		return uuid[:8]
	}
	return uuid
}

// resources are amounts for people; a PCPU is a CPU that is the guest's alone.
func resources(r topology.Resources) string {
	cpus := count(r.VCPUs, "vcpu")
	switch {
	case r.PCPUs > 0 && r.VCPUs == 0:
		cpus = count(r.PCPUs, "pcpu")
	case r.PCPUs > 0:
		cpus += ", " + count(r.PCPUs, "pcpu")
	}
	return fmt.Sprintf("%s, %d MiB, %d GiB", cpus, r.MemoryMB, r.DiskGB)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// amounts writes resources by class, "DISK_GB 1, MEMORY_MB 128, VCPU 1".
func amounts(r placementclient.Resources) string {
	var out []string
	for _, class := range slices.Sorted(maps.Keys(r)) {
		out = append(out, fmt.Sprintf("%s %d", class, r[class]))
	}
	return strings.Join(out, ", ")
}

// count says how many, with the plural where it belongs.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
