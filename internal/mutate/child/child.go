// Package child makes single changes to the host in a process of its own. The agent starts that process from its own
// binary, and gives up on it if the change blocks forever in the kernel. The package never deletes recursively, never
// follows a symbolic link below a trusted directory, and never crosses a mount while deleting. It makes no decisions.
//
// A child works while the packages of its binary are being initialized. So this package imports few others: each costs
// every child processor time.
package child

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// Name is argv[0] of the agent's own binary when it is started to make one change and exit.
const Name = "nodeagent-hand"

// maxRequest bounds a request, in bytes. It has some paths, each below 4 KiB.
const maxRequest = 1 << 20

// init makes this process a child if it was started as one: it reads a Request from standard input, makes the change,
// writes the Answer to standard output and exits. Otherwise it returns at once. Packages that come later are not
// initialized in a child: all of them would cost twice as much processor time as the rest. The packages that a child
// needs are dependencies of this one, and so are ready.
func init() {
	if len(os.Args) == 0 || os.Args[0] != Name {
		return
	}
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(0)
}

// serve answers one request.
func serve(from io.Reader, to io.Writer) error {
	var r Request
	if err := json.NewDecoder(io.LimitReader(from, maxRequest)).Decode(&r); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	if err := json.NewEncoder(to).Encode(perform(r)); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}

// perform executes a request and translates the result.
func perform(r Request) Answer {
	a := Answer{Outcome: OutcomeDone}
	var err error
	switch r.Op {
	case OpUnmount:
		a.Notes, err = unmountOne(r)
	case OpTree:
		a.Entries, err = tree(r)
	case OpRemoveDir:
		err = removeDir(r)
	case OpRemoveFile:
		err = removeFile(r)
	case OpQuarantine:
		err = quarantine(r)
	case OpCgroup:
		err = removeCgroup(r)
	case OpNetns:
		err = removeNetns(r)
	case OpReadNote:
		a.Note, err = readNote(r)
	case OpKept:
		a.Kept, err = listQuarantine(r.Quarantine)
	case OpAged:
		err = noteAge(r)
	case OpEmpty:
		err = empty(r)
	case OpFolder:
		a.Folder, a.Files, err = listFolder(r)
	case OpVacuum:
		err = vacuum(r)
	case OpRemoveFrom:
		err = removeFrom(r)
	default:
		err = Refuse("unknown operation %q", r.Op)
	}
	var refusal Refusal
	var errno syscall.Errno
	switch {
	case err == nil:
	case errors.Is(err, ErrGone):
		a.Outcome = OutcomeGone
	case errors.Is(err, ErrHarm):
		a.Outcome, a.Why = OutcomeHarm, err.Error()
	case errors.As(err, &refusal):
		a.Outcome, a.Why = OutcomeRefused, refusal.Why
	case errors.Is(err, ErrChanged):
		a.Outcome, a.Why = OutcomeChanged, strings.TrimSuffix(err.Error(), ": "+ErrChanged.Error())
	case errors.As(err, &errno):
		a.Outcome, a.Why, a.Errno = OutcomeFailed, strings.TrimSuffix(err.Error(), ": "+errno.Error()), int(errno)
	default:
		a.Outcome, a.Why, a.Errno = OutcomeFailed, err.Error(), int(syscall.EIO)
	}
	return a
}
