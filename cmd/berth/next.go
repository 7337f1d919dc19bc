package main

import (
	"slices"
	"strings"

	"berth/agent/api"
	"berth/internal/fault"
)

// next is what to type after an error, by the command that failed and the kind of the error;
// the first row that matches counts. Empty where a reason says already what to type, and
// where nothing that can be typed would help.
func next(command string, err error) string {
	body := api.BodyOf(err)
	if slices.ContainsFunc(body.Error.Reasons, func(r fault.Reason) bool {
		return r.Code == "unreachable" && strings.HasPrefix(r.Message, "no agent listens on")
	}) {
		say := "berth config check, for whether it could start; journalctl -u berth -n 50, for why it ended"
		if strings.HasPrefix(command, "berth host ") {
			say += "; berth host discover reads the hardware without it"
		}
		return say
	}
	told := slices.ContainsFunc(body.Error.Reasons, func(r fault.Reason) bool {
		return strings.Contains(r.Change, "berth ") || strings.Contains(r.Change, "systemctl ") || strings.Contains(r.Change, "--help")
	})
	if told {
		return ""
	}
	command = strings.TrimPrefix(command, "berth ")
	for _, row := range nextTable {
		if row.kind == body.Error.Kind && slices.ContainsFunc(row.commands, func(c string) bool {
			return c == "" || command == c || strings.HasPrefix(command, c+" ")
		}) {
			return row.say
		}
	}
	return ""
}

var nextTable = []struct {
	kind     fault.Kind
	commands []string // their beginnings; "" is every one
	say      string
}{
	{fault.NotFound, []string{"claim"}, "berth claim list shows what is held here"},
	{fault.NotFound, []string{"migration"}, "berth migration list shows the moves of this host"},
	{fault.NotFound, []string{"host"}, "berth host list shows the hosts there are"},
	{fault.NotFound, []string{"instance", "plan", "migrate", "resize", "rebuild", "evacuate"}, "berth instance list shows the guests of this host; berth host list the other hosts (-c HOST asks one)"},
	{fault.DoesNotFit, []string{"migrate", "resize", "evacuate", "plan", "rebuild"}, "berth plan GUEST shows each host and what is in the way; berth host topology who has what here"},
	{fault.DoesNotFit, []string{"instance", "external"}, "berth host topology shows who has what here"},
	{fault.Busy, []string{"migrate", "resize", "rebuild", "evacuate", "instance"}, "berth migration list shows what goes on with it"},
	{fault.InDoubt, []string{"migration", "migrate", "resize", "rebuild", "evacuate"}, "berth migration list; berth migration show UUID says what it waits for"},
	{fault.InDoubt, []string{""}, "berth status says what is in doubt"},
	{fault.Unavailable, []string{"status", "doctor"}, "systemctl status berth; journalctl -u berth"},
	{fault.Unavailable, []string{""}, "berth doctor says what does not answer, and what to do"},
	{fault.Invalid, []string{"agent"}, "berth config check names every fault; it needs no agent"},
	{fault.Internal, []string{""}, "berth debug bundle packs what somebody needs who looks into it"},
}
