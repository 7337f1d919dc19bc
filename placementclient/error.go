package placementclient

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"berth/internal/fault"
)

// Conflict is the meaning of a 409. Placement gives most of them the same code,
// so the text decides where nothing else does (reference: the error table of
// the Placement API, and its recorded answers).
type Conflict string

// The meanings.
const (
	// ConflictProviderGeneration: somebody else wrote the provider. Read it again,
	// compute again, write again, a bounded number of times.
	ConflictProviderGeneration Conflict = "provider_generation"
	// ConflictConsumerGeneration: somebody else wrote the consumer. Stop and look:
	// another actor believes it owns this guest's allocations.
	ConflictConsumerGeneration Conflict = "consumer_generation"
	// ConflictServerRace: the server lost a race inside itself and did nothing. The
	// same body may be sent again; the client has already done so several times.
	ConflictServerRace Conflict = "server_race"
	// ConflictInventoryInUse: the inventory that would go away is allocated.
	ConflictInventoryInUse Conflict = "inventory_in_use"
	// ConflictCapacity: the amount would exceed (total - reserved) * ratio.
	ConflictCapacity Conflict = "capacity"
	// ConflictUnits: the amount violates min_unit, max_unit or step_size.
	ConflictUnits Conflict = "units"
	// ConflictNoInventory: the provider has no inventory of the class.
	ConflictNoInventory Conflict = "no_inventory"
	// ConflictExists: a provider with the name or uuid, or the class or inventory, is there.
	ConflictExists Conflict = "exists"
	// ConflictProviderInUse: the provider to delete has allocations.
	ConflictProviderInUse Conflict = "provider_in_use"
	// ConflictHasChildren: the provider to delete has children.
	ConflictHasChildren Conflict = "has_children"
	// ConflictTraitInUse: the trait to delete is set on a provider.
	ConflictTraitInUse Conflict = "trait_in_use"
	// ConflictOther: a 409 this client does not know.
	ConflictOther Conflict = "other"
)

// APIError is an answer of Placement that says no.
type APIError struct {
	Status    int
	Code      string // e.g. "placement.concurrent_update"; empty on 401 and 406
	Title     string
	Detail    string
	RequestID string
	// Conflict is set for status 409 only.
	Conflict Conflict
	// MinVersion and MaxVersion are set on 406.
	MinVersion, MaxVersion string
}

// Error gives status, detail and request id on one line.
func (e *APIError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "placement answered %d", e.Status)
	if d := strings.Join(strings.Fields(e.Detail), " "); d != "" {
		b.WriteString(": " + d)
	} else if e.Title != "" {
		b.WriteString(" " + e.Title)
	}
	if e.RequestID != "" {
		b.WriteString(" (" + e.RequestID + ")")
	}
	return b.String()
}

// Kind maps the answer to the decision it asks for.
func (e *APIError) Kind() fault.Kind {
	switch {
	case e.Status == http.StatusNotFound:
		return fault.NotFound
	case e.Status == http.StatusUnauthorized, e.Status == http.StatusForbidden:
		return fault.Forbidden
	case e.Status == http.StatusConflict:
		switch e.Conflict {
		case ConflictProviderGeneration, ConflictConsumerGeneration:
			return fault.GenerationConflict
		case ConflictCapacity, ConflictUnits, ConflictNoInventory:
			return fault.DoesNotFit
		case ConflictExists:
			return fault.Exists
		}
		return fault.Busy
	case e.Status == http.StatusTooManyRequests, e.Status >= 500:
		return fault.Unavailable
	}
	return fault.Invalid
}

// Unwrap gives the kind, so that errors.Is(err, fault.NotFound) works on it.
func (e *APIError) Unwrap() error { return e.Kind() }

// ConflictOf is the meaning of the 409 in err's chain, or "".
func ConflictOf(err error) Conflict {
	if e, ok := errors.AsType[*APIError](err); ok {
		return e.Conflict
	}
	return ""
}

var consumerConflict = regexp.MustCompile(`consumer generation conflict - expected (\S+) but got (\S+)`)

// isOrphan says whether the answer is the one for a consumer that a failed claim
// left behind with generation 0: no GET shows it, and null is refused.
func (e *APIError) isOrphan() bool {
	m := consumerConflict.FindStringSubmatch(e.Detail)
	return e.Conflict == ConflictConsumerGeneration && m != nil && m[1] == "0" && m[2] == "None"
}

// parseError reads an error body in any of the shapes that Placement and the
// middleware before it give: the "errors" list, Keystone's "error", or text.
func parseError(status int, body []byte) *APIError {
	e := &APIError{Status: status, Title: http.StatusText(status)}
	var doc struct {
		Errors []struct {
			Title      string `json:"title"`
			Detail     string `json:"detail"`
			Code       string `json:"code"`
			RequestID  string `json:"request_id"`
			MinVersion string `json:"min_version"`
			MaxVersion string `json:"max_version"`
		} `json:"errors"`
		Error struct {
			Title   string `json:"title"`
			Message string `json:"message"`
		} `json:"error"` // Keystone's middleware
		Title   string `json:"title"` // noauth2's 401
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &doc) != nil {
		e.Detail = strings.ToValidUTF8(string(body[:min(len(body), 500)]), "?")
	} else if len(doc.Errors) > 0 {
		d := doc.Errors[0]
		e.Title, e.Detail, e.Code, e.RequestID = d.Title, d.Detail, d.Code, d.RequestID
		e.MinVersion, e.MaxVersion = d.MinVersion, d.MaxVersion
	} else if doc.Error.Message != "" {
		e.Title, e.Detail = doc.Error.Title, doc.Error.Message
	} else if doc.Message != "" {
		e.Title, e.Detail = doc.Title, doc.Message
	}
	e.Detail = strings.TrimSpace(e.Detail)
	if status == http.StatusConflict {
		e.Conflict = conflictOf(e.Code, e.Detail)
	}
	return e
}

// conflictRules are tried in order. The text of a more special case stands
// before that of a more general one.
var conflictRules = []struct {
	code, text string
	is         Conflict
}{
	{"placement.inventory.inuse", "", ConflictInventoryInUse},
	{"placement.duplicate_name", "", ConflictExists},
	{"placement.resource_provider.inuse", "", ConflictProviderInUse},
	{"placement.resource_provider.cannot_delete_parent", "", ConflictHasChildren},
	{"", "consumer generation conflict", ConflictConsumerGeneration},
	{"", "Inventory and/or allocations changed while attempting to allocate", ConflictServerRace},
	{"placement.concurrent_update", "Duplicate entry", ConflictExists},   // POST inventories, MariaDB
	{"placement.concurrent_update", "UNIQUE constraint", ConflictExists}, // the same, sqlite
	{"", "would exceed the capacity", ConflictCapacity},
	{"", "would violate inventory constraints", ConflictUnits},
	{"", "generation conflict", ConflictProviderGeneration},
	{"", "resource provider generation", ConflictProviderGeneration},
	{"", "is in use by a resource provider", ConflictTraitInUse},
	{"", "already exists", ConflictExists},
	{"", "in use", ConflictInventoryInUse},
	{"", "' invalid", ConflictNoInventory},
	{"", "is invalid", ConflictNoInventory},
}

func conflictOf(code, detail string) Conflict {
	for _, r := range conflictRules {
		if (r.code == "" || r.code == code) && strings.Contains(detail, r.text) {
			return r.is
		}
	}
	if code == "placement.concurrent_update" {
		return ConflictProviderGeneration
	}
	return ConflictOther
}

// answered keeps an APIError reachable while printing only that there was one,
// for errors whose reasons already carry its detail.
type answered struct{ e *APIError }

func (a answered) Error() string {
	if a.e.RequestID != "" {
		return fmt.Sprintf("placement answered %d (%s)", a.e.Status, a.e.RequestID)
	}
	return fmt.Sprintf("placement answered %d", a.e.Status)
}

func (a answered) Unwrap() error { return a.e }

// wrap says what was being done; doing is like "put inventories of provider x". A
// refusal for want of room gets its reason.
func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	if api, plain := err.(*APIError); plain && api.Kind() == fault.DoesNotFit {
		return &fault.Error{
			Kind: fault.DoesNotFit, Message: doing,
			Reasons: []fault.Reason{{Code: "placement_" + string(api.Conflict), Message: api.Detail}},
			Err:     answered{api},
		}
	}
	return &fault.Error{Kind: fault.KindOf(err), Message: doing, Err: err}
}
