package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"berth/internal/fault"
	"berth/internal/screen"
)

// sure asks whoever types the command whether to go on; yes says that he has said so
// already. Where nobody is there to be asked, and where the answer is another than yes,
// nothing is done.
func (a *app) sure(yes bool, doing, question string) error {
	if yes {
		return nil
	}
	if !a.answered() {
		return fault.Refuse(fault.Invalid, doing, fault.Reason{
			Code: "not_asked", Message: "it has to be said that you want this, and nobody is there to be asked", Change: "say --yes",
		})
	}
	// Beside the output, which may be JSON that a program reads.
	for _, line := range screen.Fold(question, planText) {
		fmt.Fprintln(a.err, line)
	}
	fmt.Fprint(a.err, "Type yes to go on: ")
	line := typedLine(a.in)
	if strings.ToLower(line) == "yes" {
		return nil
	}
	return fault.Refuse(fault.Forbidden, doing, fault.Reason{
		Code: "declined", Message: "you did not say yes: nothing was done", Have: line,
	})
}

// typedLine reads one line and nothing of the next, which answers another question.
func typedLine(r io.Reader) string {
	var line []byte
	for one := make([]byte, 1); len(line) < 1<<10; {
		n, err := r.Read(one)
		if n == 1 && one[0] != '\n' {
			line = append(line, one[0])
			continue
		}
		if n == 1 || err != nil {
			break
		}
	}
	return strings.TrimSpace(string(line))
}

// answered says whether somebody sits at the terminal, or BERTH_ASK=1 says that he answers
// through a pipe. What a script has on its standard input is not read for an answer.
func (a *app) answered() bool {
	if os.Getenv("BERTH_ASK") == "1" {
		return true
	}
	f, ok := a.in.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && screen.IsTerminal(a.err)
}
