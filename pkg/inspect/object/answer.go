package object

import (
	"fmt"
	"strings"
)

// Answer is one witness's statement about one object.
type Answer string

// The answers. Details may follow after a colon.
const (
	Knows    Answer = "knows"
	Denies   Answer = "does not know"
	NotAsked Answer = "not asked"
	NoAnswer Answer = "could not be heard"
)

// Unsure is the answer of a witness that answered, but cannot tell whether it means this pod. Details follow.
const Unsure Answer = "cannot tell"

// The witnesses, as Assessment.Witnesses names them.
const (
	Apiserver  = "apiserver"
	Kubelet    = "kubelet"
	Runtime    = "runtime"
	Containerd = "containerd"
)

// Unanswered is the answer of a witness that could not be asked, with the reason.
func Unanswered(err error) Answer { return NoAnswer + Answer(": "+err.Error()) }

// Known is the answer of a witness that knows the object, with details.
func Known(format string, args ...any) Answer {
	return Knows + Answer(": "+fmt.Sprintf(format, args...))
}

// Confirms reports whether a is Knows, whatever details follow.
func (a Answer) Confirms() bool {
	return a == Knows || strings.HasPrefix(string(a), string(Knows)+":")
}
