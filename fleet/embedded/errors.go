package embedded

import (
	"errors"
	"net/http"

	"berth/internal/fault"
)

// answerError is a fault as it travels. Reasons are those of a change that was refused.
type answerError struct {
	Kind    fault.Kind     `json:"kind"`
	Message string         `json:"message"`
	Reasons []fault.Reason `json:"reasons,omitempty"`
}

// answerOf leaves out of the message what the reasons say.
func answerOf(err error) *answerError {
	a := &answerError{fault.KindOf(err), err.Error(), fault.ReasonsOf(err)}
	if e, is := errors.AsType[*fault.Error](err); is && len(e.Reasons) > 0 {
		a.Message = e.Message
	}
	return a
}

func statusOf(kind fault.Kind) int {
	switch kind {
	case fault.NotFound:
		return http.StatusNotFound
	case fault.GenerationConflict, fault.Busy, fault.Exists:
		return http.StatusConflict
	case fault.Invalid:
		return http.StatusBadRequest
	case fault.Forbidden:
		return http.StatusForbidden
	case fault.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
