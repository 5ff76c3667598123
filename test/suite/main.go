// Command suite runs the layers of the tests, repeats the tests that failed on a busy machine, and prints a table of all
// layers at the end.
//
//	suite layer [-again] NAME COMMAND [ARG...]
//	suite packages race|release|machine|apart|pure
//	suite skip
//	suite end
//	suite record FILE PROGRAM [ARG...]
//	suite compiled FILE
//
// "packages" prints the packages that a layer is made of, see setsOf; "skip" prints the flag -skip of the race layer, see
// computing.
//
// "layer" runs a command and reports how long it took and which tests were skipped. If the command is "go test", it
// counts the tests. With the environment variable NODEAGENT_SUITE set to a folder ("make test" does so), it leaves
// there a row for the table; and if tests fail in a layer with -again, it leaves their names there instead of failing.
//
// "end" runs each of these tests once more, alone, and prints the table. A test that passes now is flaky: the run is
// green, and the last lines name it. A test of a package that guards the node (see guards) is never repeated.
//
// "record" is for "go build -toolexec": it notes each call of the compiler. "compiled" prints which packages were compiled
// more than once, and why.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

const usage = `usage: suite packages race|release|machine|apart|pure
       suite skip
       suite layer [-again] NAME COMMAND [ARG...]
       suite end
       suite record FILE PROGRAM [ARG...]
       suite compiled FILE`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(realMain(ctx, os.Args[1:], os.Getenv("NODEAGENT_SUITE")))
}

// realMain returns the exit code: that of the layer's command, 1 if "end" finds a failure, 2 if it could not run.
func realMain(ctx context.Context, args []string, folder string) int {
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, usage)
		return 2
	}
	var err error
	switch args[0] {
	case "layer":
		flags := flag.NewFlagSet("layer", flag.ContinueOnError)
		again := flags.Bool("again", false, "")
		if flags.Parse(args[1:]) != nil || flags.NArg() < 2 {
			fmt.Fprintln(os.Stderr, usage)
			return 2
		}
		l := layer{Name: flags.Arg(0), Command: flags.Args()[1:], Again: *again && folder != "",
			Path: os.Getenv("PATH")}
		var result result
		if result, err = l.run(ctx, os.Stdout, os.Stderr); err == nil && folder != "" {
			err = result.save(folder)
		}
		if err == nil {
			return result.Exit
		}
	case "packages":
		err = printPackages(ctx, strings.Join(args[1:], " "))
		if err == nil {
			return 0
		}
	case "skip":
		fmt.Println(skipped())
		return 0
	case "end":
		var green bool
		if green, err = end(ctx, folder, os.Stdout, os.Stderr); err == nil && green {
			return 0
		}
		if err == nil {
			return 1
		}
	case "record":
		if len(args) < 3 {
			fmt.Fprintln(os.Stderr, usage)
			return 2
		}
		if err = record(ctx, args[1], args[2:]); err == nil {
			return 0
		}
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return exit.ExitCode()
		}
	case "compiled":
		err = printCompiled(os.Stdout, strings.Join(args[1:], " "))
		if err == nil {
			return 0
		}
	default:
		err = errors.New(usage)
	}
	fmt.Fprintln(os.Stderr, "suite:", err)
	return 2
}

func printPackages(ctx context.Context, set string) error {
	packages, err := list(ctx)
	if err != nil {
		return err
	}
	sets, err := setsOf(packages)
	if err == nil && len(sets[set]) == 0 {
		err = fmt.Errorf("no packages in %q; the sets are race, release, machine, apart and pure", set)
	}
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(sets[set], "\n"))
	return nil
}
