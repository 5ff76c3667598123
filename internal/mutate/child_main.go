package mutate

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// ChildMain does the work of a child, and returns true if this process is one. It must be called first in main, and in
// TestMain of every test that uses a Mutator. If it returns true, the process must exit.
func ChildMain() bool {
	if len(os.Args) == 0 || os.Args[0] != childName {
		return false
	}
	var r request
	if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
		fmt.Fprintln(os.Stderr, "request:", err)
		return true
	}
	if err := json.NewEncoder(os.Stdout).Encode(perform(r)); err != nil {
		fmt.Fprintln(os.Stderr, "answer:", err)
	}
	return true
}

// errGone means, inside a child, that there is nothing left to do.
var errGone = errors.New("gone")

// perform executes a request and translates the result.
func perform(r request) answer {
	a := answer{Outcome: outcomeDone}
	var err error
	switch r.Op {
	case opUnmount:
		a.Notes, err = unmountChild(r)
	case opTree:
		a.Entries, err = treeChild(r)
	case opRemoveDir:
		err = removeDirChild(r)
	case opRemoveFile:
		err = removeFileChild(r)
	case opQuarantine:
		err = quarantineChild(r)
	case opCgroup:
		err = removeCgroupChild(r)
	case opNetns:
		err = removeNetnsChild(r)
	case opReadNote:
		a.Note, err = readNoteChild(r)
	case opKept:
		a.Kept, err = listQuarantine(r.Quarantine)
	case opAged:
		err = agedChild(r)
	case opEmpty:
		err = emptyChild(r)
	case opFolder:
		a.Folder, a.Files, err = folderChild(r)
	case opVacuum:
		err = vacuumChild(r)
	case opRemoveFrom:
		err = removeFromChild(r)
	default:
		err = refuse("unknown operation %q", r.Op)
	}
	var refusal Refusal
	var errno syscall.Errno
	switch {
	case err == nil:
	case errors.Is(err, errGone):
		a.Outcome = outcomeGone
	case errors.Is(err, ErrHarm):
		a.Outcome, a.Why = outcomeHarm, err.Error()
	case errors.As(err, &refusal):
		a.Outcome, a.Why = outcomeRefused, refusal.Why
	case errors.Is(err, ErrChanged):
		a.Outcome, a.Why = outcomeChanged, strings.TrimSuffix(err.Error(), ": "+ErrChanged.Error())
	case errors.As(err, &errno):
		a.Outcome, a.Why, a.Errno = outcomeFailed, strings.TrimSuffix(err.Error(), ": "+errno.Error()), int(errno)
	default:
		a.Outcome, a.Why, a.Errno = outcomeFailed, err.Error(), int(syscall.EIO)
	}
	return a
}
