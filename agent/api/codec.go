package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"

	"berth/internal/fault"
)

// MaxBody bounds a request and an answer. A domain's XML is under 100 KiB, a
// host of 64 nodes with a thousand devices under 2 MiB.
const MaxBody = 8 << 20

// statusOf is the HTTP status of a kind. Programs read the kind; the status is
// for whatever stands in between.
func statusOf(k fault.Kind) int {
	switch k {
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Exists, fault.Busy, fault.DoesNotFit, fault.GenerationConflict, fault.Undone:
		return http.StatusConflict
	case fault.Unavailable:
		return http.StatusServiceUnavailable
	case fault.Invalid:
		return http.StatusBadRequest
	case fault.Forbidden:
		return http.StatusForbidden
	}
	return http.StatusInternalServerError
}

// kindOfStatus is for answers that are no error body: a proxy's, say.
func kindOfStatus(status int) fault.Kind {
	switch status {
	case http.StatusNotFound:
		return fault.NotFound
	case http.StatusUnauthorized, http.StatusForbidden:
		return fault.Forbidden
	case http.StatusConflict:
		return fault.Busy
	case http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge:
		return fault.Invalid
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusTooManyRequests:
		return fault.Unavailable
	}
	return fault.Internal
}

// BodyOf is the error body of err. The message has no reasons in it: whoever
// reads the body has them in their own list.
func BodyOf(err error) ErrorBody {
	d := ErrorDetail{Kind: fault.KindOf(err), Message: messageOf(err), Reasons: fault.ReasonsOf(err)}
	if d.Reasons == nil {
		d.Reasons = []fault.Reason{}
	}
	return ErrorBody{Error: d}
}

// messageOf takes the reasons that fault.Error prints out of the text again.
func messageOf(err error) string {
	text := err.Error()
	var walk func(error)
	walk = func(err error) {
		if e, ok := err.(*fault.Error); ok && len(e.Reasons) > 0 {
			said := make([]string, len(e.Reasons))
			for i, r := range e.Reasons {
				said[i] = r.Message
			}
			joined := strings.Join(said, "; ")
			for _, form := range []string{": " + joined, joined + ": ", joined} {
				if strings.Contains(text, form) {
					text = strings.Replace(text, form, "", 1)
					break
				}
			}
		}
		switch u := err.(type) {
		case interface{ Unwrap() error }:
			if next := u.Unwrap(); next != nil {
				walk(next)
			}
		case interface{ Unwrap() []error }:
			for _, next := range u.Unwrap() {
				walk(next)
			}
		}
	}
	walk(err)
	if text == "" {
		text = fault.KindOf(err).Error()
	}
	return text
}

// Err gives the body back as an error of its kind.
func (b ErrorBody) Err() error {
	return &fault.Error{Kind: b.Error.Kind, Message: b.Error.Message, Reasons: b.Error.Reasons}
}

// codeUnknownField is the code of a refusal of a request with a field that this agent does not know.
const codeUnknownField = "unknown_field"

// decodeError reads the body of an answer that says no.
func decodeError(status int, body []byte) error {
	var b ErrorBody
	if json.Unmarshal(body, &b) == nil && known(b.Error.Kind) {
		return b.Err()
	}
	return fault.New(kindOfStatus(status), "answered %d %s: %s", status, http.StatusText(status), abridged(body))
}

func known(k fault.Kind) bool {
	switch k {
	case fault.NotFound, fault.Exists, fault.Busy, fault.DoesNotFit, fault.GenerationConflict, fault.Unavailable,
		fault.Invalid, fault.Forbidden, fault.InDoubt, fault.Undone, fault.Internal:
		return true
	}
	return false
}

func abridged(b []byte) string {
	const most = 200
	return strings.ToValidUTF8(string(bytes.TrimSpace(b[:min(len(b), most)])), "?")
}

// wantJSON refuses a body of another type. A web page can make a browser send
// text or a form to any address, with the operator's certificate that the browser
// holds, but JSON only where the server has agreed to it, which this one never
// does.
func wantJSON(r *http.Request) error {
	have := r.Header.Get("Content-Type")
	if kind, _, err := mime.ParseMediaType(have); err == nil && kind == "application/json" {
		return nil
	}
	return fault.Refuse(fault.Invalid, "read the request", fault.Reason{
		Code: "content_type", Message: fmt.Sprintf("the body's Content-Type is %q", have), Want: "application/json", Have: have,
		Change: "send JSON, with the header Content-Type: application/json",
	})
}

// decodeStrict reads one JSON value and nothing else from a bounded body.
func decodeStrict(r io.Reader, v any) error {
	invalid := func(code, message, change string) error {
		return fault.Refuse(fault.Invalid, "read the request", fault.Reason{Code: code, Message: message, Change: change})
	}
	text, err := io.ReadAll(r)
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err == nil {
		if err := boundedValues(text); err != nil {
			return err
		}
		err = dec.Decode(v)
	}
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			return invalid("body", "something follows the JSON value", "send one JSON value")
		}
		return nil
	}
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return invalid(reasonTooLarge, fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit), "send less")
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return invalid(codeUnknownField, "unknown field "+field, "see GET /v1/openapi.json for the fields there are")
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return invalid("field_type", fmt.Sprintf("field %q: a JSON %s does not fit", wrong.Field, wrong.Value), "see GET /v1/openapi.json for its type")
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return invalid("body_late", "the body did not arrive in time", "send it at once")
	}
	if errors.Is(err, io.EOF) {
		return invalid("body", "the body is empty", "send a JSON object")
	}
	return invalid("body", "not JSON: "+err.Error(), "send a JSON object")
}
