package api

import (
	"context"

	"berth/internal/fault"
	"berth/migration"
)

// operatorsWord refuses an evacuation that a host asks for, also one that it passes on:
// that a guest's host is dead is a person's business.
func operatorsWord(ctx context.Context, in Migrate) error {
	if in.MigrationType != migration.TypeEvacuation {
		if in.Stopped || in.AcceptLoss {
			return fault.New(fault.Invalid, "stopped and accept_data_loss are of an evacuation")
		}
		return nil
	}
	who := callerOf(ctx)
	if who.caller&operators != 0 {
		return nil
	}
	return fault.Refuse(fault.Forbidden, "evacuate instance "+in.Instance, fault.Reason{
		Code: "caller", Message: "a caller by " + who.caller.String() + " may not ask for an evacuation", Have: who.caller.String(),
		Change: "use the local socket or an operator's certificate",
	})
}
