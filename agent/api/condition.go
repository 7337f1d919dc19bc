package api

import "berth/internal/fault"

// OK is the condition of a part that is well.
func OK(name, detail string) Condition {
	return Condition{Name: name, Health: HealthOK, Detail: detail}
}

// Degraded is the condition of a part that needs somebody, with the reasons.
func Degraded(name, detail string, reasons ...fault.Reason) Condition {
	return Condition{Name: name, Health: HealthDegraded, Detail: detail, Reasons: reasons}
}
