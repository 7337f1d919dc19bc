package audit

import (
	"time"

	"berth/placementclient"
)

// Kind says what the subject of a row is.
type Kind string

// The kinds.
const (
	KindInstance  Kind = "instance"
	KindMigration Kind = "migration"
	KindConsumer  Kind = "consumer" // of Placement's, that nobody here knows
	KindDomain    Kind = "domain"
	KindProvider  Kind = "provider"
)

// Row is one subject.
type Row struct {
	Subject string  `json:"subject"` // uuid
	Kind    Kind    `json:"kind"`
	Name    string  `json:"name,omitempty"`
	Verdict Verdict `json:"verdict"`
	Code    string  `json:"code"`
	Message string  `json:"message"`
	// Change is what an operator does next; empty where nothing is to be done.
	Change string `json:"change,omitempty"`
	// Differences are the amounts that are not as they are claimed.
	Differences []Difference `json:"differences,omitempty"`
	// Heal is the write that makes it agree, empty for none. Quarantine is why there is
	// none, where the row does not agree.
	Heal       Heal   `json:"heal,omitempty"`
	Quarantine string `json:"quarantine,omitempty"`
	// Healed says that the write was done, Failed why it could not be.
	Healed bool   `json:"healed,omitempty"`
	Failed string `json:"failed,omitempty"`
	// Since is when an audit of this agent first saw the row as it is.
	Since time.Time `json:"since,omitzero"`

	// Write is what the heal puts, by consumer, guarded by the generations that the
	// row was judged by.
	Write map[string]placementclient.Allocations `json:"-"`
	Facts Facts                                  `json:"-"`
}

// Difference is one class of one provider.
type Difference struct {
	Provider string `json:"provider"`
	Class    string `json:"class"`
	Want     int64  `json:"want"`
	Have     int64  `json:"have"`
}

// Agrees reports whether nothing is left to do about the row.
func (r Row) Agrees() bool { return r.Verdict == Agree || r.Healed }

// Unmanaged reports whether all that is to say of the row is that a guest runs here
// that nobody has put under Berth's hand. It is named, and is no fault: its room is
// given to nobody, and Placement and ledger say nothing of it that could be wrong.
func (r Row) Unmanaged() bool { return r.Code == CodeUnmanaged }

// Settles reports whether somebody is at work on the subject, as far as is known, so
// that the row goes without anybody's doing.
func (r Row) Settles() bool {
	switch r.Code {
	case CodeCreating, CodeMovingMissing, CodeMovingDiffers, CodeGuestGone, CodeClaimLeft, CodeInTransit, CodeRecordOnly, CodeClaimMissing:
		return true
	}
	return false
}
