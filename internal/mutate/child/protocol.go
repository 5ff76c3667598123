package child

// Request is a change for a child to make. The operation decides which fields count.
type Request struct {
	Op   Operation `json:"op"`
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

// Operation names a change.
type Operation string

// The operations. The functions of perform make them.
const (
	OpUnmount    Operation = "unmount"
	OpTree       Operation = "tree"
	OpRemoveDir  Operation = "remove-directory"
	OpRemoveFile Operation = "remove-file"
	OpQuarantine Operation = "quarantine"
	OpCgroup     Operation = "remove-cgroup"
	OpNetns      Operation = "remove-netns"
	OpReadNote   Operation = "read-note"
	OpKept       Operation = "list-quarantine"
	OpAged       Operation = "note-quarantine"
	OpEmpty      Operation = "empty-quarantine"
	OpFolder     Operation = "list-folder"
	OpRemoveFrom Operation = "remove-from-folder"
	OpVacuum     Operation = "vacuum-journal"
)

// Outcome says how a child's work ended.
type Outcome string

// The outcomes.
const (
	OutcomeDone    Outcome = "done"
	OutcomeGone    Outcome = "gone" // no longer needed
	OutcomeRefused Outcome = "refused"
	OutcomeChanged Outcome = "changed"
	OutcomeHarm    Outcome = "harm"   // more was changed than requested
	OutcomeFailed  Outcome = "failed" // the kernel refused: see Errno
)

// Answer is the result of a child.
type Answer struct {
	Outcome Outcome  `json:"outcome"`
	Why     string   `json:"why,omitempty"`
	Errno   int      `json:"errno,omitempty"`
	Entries []Entry  `json:"entries,omitempty"`
	Note    Note     `json:"note,omitzero"`
	Kept    []Kept   `json:"kept,omitempty"`
	Notes   []string `json:"notes,omitempty"` // further changes or observations

	Folder FileID       `json:"folder,omitzero"`
	Files  []FolderFile `json:"files,omitempty"`
}
