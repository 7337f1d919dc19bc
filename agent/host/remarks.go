package host

import (
	"context"

	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/topology"
)

// keptAsItIs is the code of a reason that names what Berth leaves of a guest as it
// stands.
const keptAsItIs = "kept_as_it_is"

// Remarks are what is to be known of a guest besides its claim: what the claim
// had to guess, and what of the guest Berth keeps as it is and does not represent.
// They are read from its document each time and stored nowhere. A document that
// cannot be read now is itself a remark; a guest without one has none.
func (h *Host) Remarks(ctx context.Context, uuid string) []fault.Reason {
	_, exists, err := h.domain(ctx, uuid)
	if err == nil && !exists {
		return nil
	}
	var text string
	if err == nil {
		text, err = h.driver.XML(ctx, uuid, driver.Live)
	}
	var doc *domainxml.Doc
	if err == nil {
		doc, err = domainxml.Parse(text)
	}
	if err != nil {
		return []fault.Reason{unreadDocument(err)}
	}
	_, doubts := h.foundIn(doc, topology.Resources{})
	return append(doubts, keptReasons(doc)...)
}

// unreadDocument says that nothing is known but what the hypervisor counts.
func unreadDocument(err error) fault.Reason {
	return fault.Reason{
		Code: "document_unreadable", Message: "its document could not be read, so what it has of the host besides vCPUs and memory is not known: " + err.Error(),
		Change: "ask again when libvirt answers; correct the document with virsh edit DOMAIN if it is at fault",
	}
}

func keptReasons(doc *domainxml.Doc) []fault.Reason {
	var out []fault.Reason
	for _, k := range doc.Kept() {
		out = append(out, fault.Reason{Code: keptAsItIs, Message: doc.Name() + ": " + k.String(), Have: k.What, Change: k.Change})
	}
	return out
}
