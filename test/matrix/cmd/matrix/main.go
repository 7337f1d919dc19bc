// Command matrix joins what a run's suites found about the driver into one file,
// prints the counts, and fails where a cell is empty or failed; see package
// matrix. The run is told by the environment, as to the tests.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"berth/driver/drivertest"
	"berth/test/matrix"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintf(os.Stderr, "usage: %s=SHEETS %s=RUN matrix OUT.json\n", matrix.FolderVariable, matrix.RunVariable)
		os.Exit(2)
	}
	if err := join(os.Getenv(matrix.FolderVariable), os.Getenv(matrix.RunVariable), os.Args[1]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func join(dir, run, out string) error {
	sheets, err := matrix.Read(dir, run)
	if err != nil {
		return fmt.Errorf("read the sheets: %w", err)
	}
	m, wrong := matrix.Join(drivertest.Properties(""), sheets)
	b, err := json.MarshalIndent(m, "", "\t")
	if err != nil {
		return err
	}
	err = os.WriteFile(out, append(b, '\n'), 0o644)
	fmt.Print(m.Table(sheets))
	return errors.Join(wrong, err)
}
