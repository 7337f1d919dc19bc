package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/options"
)

// SetMigration changes a live migration on its way. What is left out stays as it is.
type SetMigration struct {
	// Bandwidth bounds the transfer, bytes a second, in post-copy what is left of it;
	// Unbounded takes the bound away.
	Bandwidth   uint64        `json:"bandwidth_bytes,omitempty"`
	MaxDowntime time.Duration `json:"max_downtime,omitempty"` // nanoseconds
}

// Unbounded is a bandwidth that no transfer reaches: hypervisors have no word for none.
// Arbitrary, and far below where libvirt's own counting in MiB a second ends.
const Unbounded = 1 << 40

// Tuning is the same for a conductor.
func (s SetMigration) Tuning() migration.Tuning {
	return migration.Tuning{Bandwidth: s.Bandwidth, MaxDowntime: s.MaxDowntime}
}

func (s SetMigration) validate(ref string) error {
	var reasons []fault.Reason
	if s.Bandwidth == 0 && s.MaxDowntime == 0 {
		reasons = append(reasons, fault.Reason{Code: "nothing_said", Message: "neither a bandwidth nor a maximum downtime is said", Change: "say bandwidth_bytes, max_downtime, or both"})
	}
	downtime, _ := options.Find("max_downtime")
	switch least, most := time.Duration(downtime.Min), time.Duration(downtime.Max); {
	case s.MaxDowntime < 0:
		reasons = append(reasons, fault.Reason{Code: "negative_duration", Message: "the maximum downtime cannot be negative", Have: s.MaxDowntime.String(), Change: "say a duration above 0"})
	case s.MaxDowntime > 0 && (s.MaxDowntime < least || s.MaxDowntime > most):
		reasons = append(reasons, fault.Reason{
			Code: "max_downtime", Message: fmt.Sprintf("hypervisors know a maximum downtime of %s to %s", least, most), Want: fmt.Sprintf("%s to %s", least, most), Have: s.MaxDowntime.String(),
			Change: "say one of them; nanoseconds",
		})
	}
	if s.Bandwidth > Unbounded {
		reasons = append(reasons, fault.Reason{
			Code: "bandwidth", Message: "a bandwidth above a TiB a second is none", Want: fmt.Sprint(uint64(Unbounded)), Have: fmt.Sprint(s.Bandwidth),
			Change: fmt.Sprintf("say a smaller one, or %d for no bound", uint64(Unbounded)),
		})
	}
	if len(reasons) > 0 {
		return fault.Refuse(fault.Invalid, "change migration "+ref, reasons...)
	}
	return nil
}

// Priority is a place among moves that wait for their turn, see migration.PriorityUser. In
// JSON a number, or one of the words of priorities.
type Priority int

// priorities are those that have a name, the last to go first.
var priorities = []struct {
	word  string
	value Priority
}{
	{"maintenance", migration.PriorityMaintenance},
	{"user", migration.PriorityUser},
	{"drain", migration.PriorityDrain},
	{"urgent", migration.PriorityUrgent},
}

// PriorityWords are the priorities that have a name, the last to go first.
func PriorityWords() []string {
	words := make([]string, len(priorities))
	for i, p := range priorities {
		words[i] = p.word
	}
	return words
}

// ParsePriority reads a word, or a number from 1 to migration.PriorityUrgent.
func ParsePriority(text string) (Priority, error) {
	for _, p := range priorities {
		if text == p.word {
			return p.value, nil
		}
	}
	if n, err := strconv.Atoi(text); err == nil && n >= 1 && n <= migration.PriorityUrgent {
		return Priority(n), nil
	}
	return 0, fault.New(fault.Invalid, "priority %q: want %s, or 1 to %d; the higher goes first", text, strings.Join(PriorityWords(), ", "), migration.PriorityUrgent)
}

// String is the word where there is one.
func (p Priority) String() string {
	for _, known := range priorities {
		if p == known.value {
			return known.word
		}
	}
	return strconv.Itoa(int(p))
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Priority) UnmarshalJSON(data []byte) error {
	text := string(data)
	if len(data) > 0 && data[0] == '"' {
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
	}
	if text == "0" || text == "null" {
		*p = 0
		return nil
	}
	read, err := ParsePriority(text)
	if err == nil {
		*p = read
	}
	return err
}

// prioritySchema is the JSON Schema of a Priority.
func prioritySchema() map[string]any {
	return map[string]any{
		"description": "The higher goes first.",
		"anyOf": []any{
			map[string]any{"type": "integer", "minimum": 0, "maximum": migration.PriorityUrgent},
			map[string]any{"type": "string", "enum": PriorityWords()},
		},
	}
}

// controlRows are what is done to a live migration while it runs.
func controlRows() []route {
	return []route{
		write(http.MethodPost, "/v1/migrations/{migration}/set", "migration-set", "Change the bandwidth or the maximum downtime of a live migration on its way. By its uuid, or its guest's name or uuid.", everyone,
			func(s *Server, r *http.Request, in SetMigration) (migration.Migration, error) {
				ref := r.PathValue("migration")
				if err := in.validate(ref); err != nil {
					return migration.Migration{}, err
				}
				return s.svc.Migrations.Set(r.Context(), ref, in)
			}).canRelay(),
		write(http.MethodPost, "/v1/migrations/{migration}/force-complete", "migration-force-complete", "Have a live migration come to its end now: by post-copy where that is permitted and possible, else with the guest's CPUs standing still until its memory is there. By its uuid, or its guest's name or uuid.", everyone,
			func(s *Server, r *http.Request, _ nothing) (migration.Migration, error) {
				return s.svc.Migrations.ForceComplete(r.Context(), r.PathValue("migration"))
			}).canRelay(),
	}
}

// SetMigration changes a live migration on its way; safe to repeat.
func (c *Client) SetMigration(ctx context.Context, ref string, in SetMigration) (out migration.Migration, err error) {
	return out, c.do(ctx, http.MethodPost, "/v1/migrations/"+url.PathEscape(ref)+"/set", in, &out, repeatable)
}

// ForceComplete has a live migration come to its end now; safe to repeat.
func (c *Client) ForceComplete(ctx context.Context, ref string) (out migration.Migration, err error) {
	return out, c.do(ctx, http.MethodPost, "/v1/migrations/"+url.PathEscape(ref)+"/force-complete", nothing{}, &out, repeatable)
}
