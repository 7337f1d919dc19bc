package options

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/internal/fault"
	"berth/migration/converge"
)

// Validate gives what is wrong with merged options by themselves, whatever guest and hosts;
// nil where nothing is. What a guest, a host or a pair of them cannot do is theirs to say.
func (o Live) Validate() []fault.Reason { return o.ValidateFrom(nil) }

// ValidateFrom is Validate with the names of those who said what does not go together.
func (o Live) ValidateFrom(from map[string]From) []fault.Reason {
	var reasons []fault.Reason
	for _, b := range o.OutOfBounds() {
		reasons = append(reasons, refused(b.Option.Flag, b.Have, b.Want))
	}
	if len(reasons) > 0 {
		return reasons // what goes together is not to be told of values that cannot be
	}
	for _, c := range conflicts(o) {
		c.why.Message += whoSaid(from, c.names)
		reasons = append(reasons, c.why)
	}
	return reasons
}

// Bound is an option whose value cannot be.
type Bound struct {
	Option     Option
	Have, Want string
}

// OutOfBounds gives the options whose values cannot be, each by itself.
func (o Live) OutOfBounds() []Bound {
	var out []Bound
	for _, row := range table {
		if want := row.wrong(o); want != "" {
			out = append(out, Bound{row, cmp.Or(row.Text(o), "none"), want})
		}
	}
	return out
}

// wrong says what is wanted where the value cannot be; what is not said can always be.
func (o Option) wrong(l Live) string {
	if !o.said(l) {
		return ""
	}
	within := true
	switch v := o.at(&l).(type) {
	case *uint64:
		within = *v >= o.Min && *v <= o.Max && (o.Kind != KindSize || *v&(*v-1) == 0)
	case *time.Duration:
		within = *v > 0 && uint64(*v) >= o.Min && uint64(*v) <= o.Max
	case *int:
		within = *v > 0 && uint64(*v) >= o.Min && uint64(*v) <= o.Max
	case *Switch:
		within = *v == On || *v == Off
	case *Action:
		within = slices.Contains(o.Words, string(*v))
	case *[]string:
		within = o.words(*v)
	case *string:
		if o.Kind == KindWord {
			within = slices.Contains(o.Words, *v)
			break
		}
		if uint64(len(*v)) > o.Max {
			return fmt.Sprintf("%s of at most %d letters", o.Want(), o.Max)
		}
		if _, err := converge.ParseSchedule(*v); err != nil {
			return o.Want() + ": " + strings.TrimPrefix(err.Error(), "schedule: ")
		}
	}
	if within {
		return ""
	}
	return o.Want()
}

// words reports whether each is known, none is there twice, and "none" is alone.
func (o Option) words(said []string) bool {
	for i, w := range said {
		if !slices.Contains(o.Words, w) || slices.Contains(said[:i], w) || w == methodNone && len(said) > 1 {
			return false
		}
	}
	return true
}

// conflict is a pair of options that cannot be together, or one that cannot be alone.
type conflict struct {
	why   fault.Reason
	names []string // in JSON, of the options that have to do with it
	// mend takes out of the schedule what the other option forbids; nil where nothing less
	// than the whole option is at odds.
	mend func(*Live)
}

// conflicts gives what cannot be together. The rules of compression, parallel connections
// and auto-converge are libvirt's (qemuMigrationParamsFromFlags and …SetCompression), those of
// zero copy QEMU's (migrate_caps_check); found out here, nothing has moved yet.
//
// Post-copy goes with all of them: it is a job of its own, by one connection and as it is.
func conflicts(o Live) []conflict {
	var out []conflict
	bad := func(code, change, message string, names ...string) {
		out = append(out, conflict{why: fault.Reason{Code: code, Message: message, Change: change}, names: names})
	}
	parallel := o.Parallel > 1
	packs := func(method string) bool { return slices.Contains(o.Compression, method) }
	some := len(o.Compression) > 0 && !packs(methodNone)

	for _, method := range []string{methodXBZRLE, methodMT} {
		if parallel && packs(method) {
			bad("compression_parallel", "take zlib or zstd, or parallel connections 1", fmt.Sprintf("compression %s is of one connection, and %d are asked for", method, o.Parallel), "compression", "parallel_connections")
		}
	}
	for _, method := range []string{methodZlib, methodZstd} {
		if !parallel && packs(method) {
			bad("compression_single", "ask for parallel connections, 2 or more, or take xbzrle", "compression "+method+" is of parallel connections alone", "compression", "parallel_connections")
		}
	}
	if packs(methodZlib) && packs(methodZstd) {
		bad("compression_two", "take one of them", "compression zlib and zstd exclude each other", "compression")
	}
	for _, of := range []struct {
		method string
		names  []string
	}{
		{methodXBZRLE, []string{"xbzrle_cache_bytes"}},
		{methodMT, []string{"compression_mt_level", "compression_mt_threads", "compression_mt_dthreads"}},
		{methodZlib, []string{"compression_zlib_level"}},
		{methodZstd, []string{"compression_zstd_level"}},
	} {
		for _, name := range of.names {
			if row, _ := Find(name); row.said(o) && !packs(of.method) {
				bad("compression_unused", "ask for compression "+of.method+", or leave out "+row.Flag, row.Flag+" is of compression "+of.method+", which is not asked for", name, "compression")
			}
		}
	}
	if o.ZeroCopy == On && !parallel {
		bad("zero_copy_single", "ask for parallel connections, 2 or more, or leave out zerocopy", "zero copy is of parallel connections alone", "zero_copy", "parallel_connections")
	}
	if o.ZeroCopy == On && some {
		bad("zero_copy_compression", "leave out one of them", "memory that is sent from where it is cannot be compressed: zero copy excludes compression", "zero_copy", "compression")
	}
	if o.AutoConverge != On {
		for _, name := range []string{"auto_converge_initial", "auto_converge_increment"} {
			if row, _ := Find(name); row.said(o) {
				bad("auto_converge_off", "ask for auto-converge, or leave out "+row.Flag, row.Flag+" is of auto-converge, which is not asked for", name, "auto_converge")
			}
		}
	}
	if o.DowntimeSteps > 1 && o.MaxDowntime == 0 {
		bad("downtime_ladder", "say max-downtime, or leave out downtime-steps", "downtime-steps is a ladder to the maximum downtime, and none is said", "downtime_steps")
	}
	if o.TimeoutAction != "" && o.TimeoutAction != ActionAbort && o.Timeout == 0 && o.TimeoutPerGiB == 0 {
		bad("timeout_action_idle", "say timeout or timeout-per-gib, or leave out timeout-action", "timeout action "+string(o.TimeoutAction)+" is of a timeout, and there is none", "timeout_action", "timeout", "timeout_per_gib")
	}
	if o.TimeoutAction == ActionPostCopy && o.PostCopy != On {
		bad("post_copy_not_permitted", "permit it with postcopy, or take another timeout action: force takes post-copy where it is permitted, else suspend", "timeout action post-copy needs post-copy, which is not permitted", "timeout_action", "post_copy")
	}
	if o.CopyStorage == StorageNone {
		for _, name := range []string{"copy_storage_synchronous_writes", "migrate_disks_detect_zeroes"} {
			if row, _ := Find(name); row.Text(o) == string(On) {
				bad("no_storage_copy", "leave out "+row.Flag+", or take copy-storage all", row.Flag+" is of disks that are copied, and copy-storage none copies none", name, "copy_storage")
			}
		}
	}
	return append(out, o.scheduled()...)
}

// scheduled gives what is at odds with the schedule.
func (o Live) scheduled() []conflict {
	var out []conflict
	schedule, err := converge.ParseSchedule(o.Schedule)
	if err != nil {
		return nil // a matter of bounds
	}
	without := func(do converge.Act) func(*Live) {
		return func(l *Live) {
			l.Schedule = slices.DeleteFunc(slices.Clone(schedule), func(s converge.Step) bool { return s.Do == do }).String()
		}
	}
	if schedule.Has(converge.ActPostCopy) && o.PostCopy != On {
		out = append(out, conflict{fault.Reason{
			Code: "post_copy_not_permitted", Message: "the schedule has post-copy, which is not permitted", Change: "permit it with postcopy, or take it out of the schedule",
		}, []string{"schedule", "post_copy"}, without(converge.ActPostCopy)})
	}
	if _, _, throttled := schedule.Throttle(); throttled && o.AutoConverge == Off {
		out = append(out, conflict{fault.Reason{
			Code: "throttle_off", Message: "the schedule throttles the guest, and auto-converge is off", Change: "leave out auto-converge, or take throttle out of the schedule",
		}, []string{"schedule", "auto_converge"}, without(converge.ActThrottle)})
	}
	return out
}

// whoSaid names those who have said options, in brackets; empty where nobody is known.
func whoSaid(from map[string]From, names []string) string {
	var out []string
	for _, name := range names {
		row, _ := Find(name)
		if who := from[name]; who != "" {
			out = append(out, fmt.Sprintf("%s: %s", row.Flag, who))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return " (" + strings.Join(out, ", ") + ")"
}
