package mutate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/program"
)

// childName is argv[0] of the agent's own binary when it is started to make one change and exit.
const childName = "nodeagent-hand"

// maxAbandoned is how many children may hang in the kernel at once. A process in the D state cannot be killed.
const maxAbandoned = 3

const (
	killGrace      = 2 * time.Second // how long a killed child may take to exit before it is abandoned
	maxChildOutput = 64 << 20        // bytes; the longest answer lists a tree
)

// children starts child processes and gives up on those that hang.
type children struct {
	limit time.Duration // for one child

	mu        sync.Mutex // guards abandoned
	abandoned int
}

// request is a change for a child to make. The operation decides which fields count.
type request struct {
	Op   operation `json:"op"`
	Base string    `json:"base"`          // trusted directory; the rest is looked up below it
	UID  string    `json:"uid,omitempty"` // directory of the pod, directly below Base
	// relative to the pod's directory, or to Base if UID is empty
	Path       string    `json:"path,omitempty"`
	Name       []byte    `json:"name,omitempty"`      // as Path, if it need not be UTF-8
	Mount      Mount     `json:"mount,omitzero"`      //
	Flags      int       `json:"flags,omitempty"`     // of umount2
	File       FileID    `json:"file,omitzero"`       //
	Quarantine string    `json:"to,omitempty"`        // trusted directory to move files into
	Type       EntryType `json:"type,omitempty"`      // of a file to be removed; empty: a regular one
	Limit      uint64    `json:"limit,omitempty"`     // bytes that the quarantine may hold
	Kept       Kept      `json:"kept,omitzero"`       // entry of the quarantine
	ForceEmpty bool      `json:"forceEmpty,omitzero"` // drop a v1 memory cgroup's page cache before its removal

	Remove FolderFile `json:"remove,omitzero"` // in the folder with the identity File
}

type operation string

const (
	opUnmount    operation = "unmount"
	opTree       operation = "tree"
	opRemoveDir  operation = "remove-directory"
	opRemoveFile operation = "remove-file"
	opQuarantine operation = "quarantine"
	opCgroup     operation = "remove-cgroup"
	opNetns      operation = "remove-netns"
	opReadNote   operation = "read-note"
	opKept       operation = "list-quarantine"
	opAged       operation = "note-quarantine"
	opEmpty      operation = "empty-quarantine"
	opFolder     operation = "list-folder"
	opRemoveFrom operation = "remove-from-folder"
	opVacuum     operation = "vacuum-journal"
)

// outcome says how a child's work ended.
type outcome string

const (
	outcomeDone    outcome = "done"
	outcomeGone    outcome = "gone" // no longer needed
	outcomeRefused outcome = "refused"
	outcomeChanged outcome = "changed"
	outcomeHarm    outcome = "harm"   // more was changed than requested
	outcomeFailed  outcome = "failed" // the kernel refused: see Errno
)

// answer is the result of a child.
type answer struct {
	Outcome outcome  `json:"outcome"`
	Why     string   `json:"why,omitempty"`
	Errno   int      `json:"errno,omitempty"`
	Entries []Entry  `json:"entries,omitempty"`
	Note    Note     `json:"note,omitzero"`
	Kept    []Kept   `json:"kept,omitempty"`
	Notes   []string `json:"notes,omitempty"` // further changes or observations

	Folder FileID       `json:"folder,omitzero"`
	Files  []FolderFile `json:"files,omitempty"`
}

// do makes a child make one change. An error means that the change was not made, or that this is unknown.
func (d *Mutator) do(ctx context.Context, r request) (answer, error) {
	return d.doIn(ctx, &d.children, r)
}

// doIn is do with other children, which have their own limit.
func (d *Mutator) doIn(ctx context.Context, c *children, r request) (answer, error) {
	input, err := json.Marshal(r)
	if err != nil {
		return answer{}, err
	}
	output, err := c.run(ctx, &exec.Cmd{
		Path:  "/proc/self/exe", // the running file, whatever its name refers to now
		Args:  []string{childName},
		Dir:   "/",
		Env:   childEnv,
		Stdin: bytes.NewReader(input),
	})
	if err != nil {
		return answer{}, fmt.Errorf("%s: %w", r.Op, err)
	}
	var a answer
	if err := json.Unmarshal(output, &a); err != nil {
		return answer{}, fmt.Errorf("%s: answer of the child: %w", r.Op, err)
	}
	return a, a.error(r.Op)
}

// error turns an answer into an error that callers can branch on.
func (a answer) error(op operation) error {
	switch a.Outcome {
	case outcomeDone, outcomeGone:
		return nil
	case outcomeRefused:
		return Refusal{a.Why}
	case outcomeChanged:
		return changed("%s", a.Why)
	case outcomeHarm:
		return harm{a.Why}
	}
	errno := syscall.Errno(a.Errno)
	if errno == unix.EBUSY || errno == unix.ENOTEMPTY {
		return fmt.Errorf("%s: %s: %w: %w", op, a.Why, errno, ErrBusy)
	}
	return fmt.Errorf("%s: %s: %w", op, a.Why, errno)
}

// run starts a command and returns its output. If ctx or the limit ends first, the child is killed, and abandoned if
// even that does not end it.
func (c *children) run(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	c.mu.Lock()
	full := c.abandoned >= maxAbandoned
	c.mu.Unlock()
	if full {
		return nil, ErrTooManyAbandoned
	}
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	output, complaint := program.Buffer{Limit: maxChildOutput}, program.Buffer{Limit: maxChildOutput}
	cmd.Stdout, cmd.Stderr = &output, &complaint
	cmd.WaitDelay = time.Second                     // a grandchild may keep the pipes open
	child := &program.Child{Cmd: cmd, Inline: true} // so that no change is made after run gave up
	child.Start()
	select {
	case <-child.Done():
		return result(output.Bytes(), complaint.Bytes(), child.Err())
	case <-ctx.Done():
	}
	if !child.Kill(killGrace) {
		c.abandon(child.Done())
	}
	return nil, fmt.Errorf("no answer: %w", context.Cause(ctx))
}

// abandon counts a hanging child until it ends after all.
func (c *children) abandon(ended <-chan struct{}) {
	c.mu.Lock()
	c.abandoned++
	c.mu.Unlock()
	go func() {
		<-ended
		c.mu.Lock()
		c.abandoned--
		c.mu.Unlock()
	}()
}

func result(output, complaint []byte, err error) ([]byte, error) {
	if err == nil {
		return output, nil
	}
	const most = 2000
	if text := bytes.TrimSpace(complaint); len(text) > 0 {
		return output, fmt.Errorf("%w: %s", err, text[:min(len(text), most)])
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(output) > 0 {
		return output, err
	}
	return nil, err
}
