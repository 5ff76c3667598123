package inspect

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// Lister lists the objects of one kind that exist on the node, whoever owns them. An error together with objects means
// that some could not be read: nothing is known about objects that are not listed. A lister never blocks on what it
// lists: no path below a mount is looked up.
type Lister func(ctx context.Context, scan *hostscan.Scan) ([]Object, error)

// KindSpec is all that is said about a kind of object. A new kind that is released is a file with its lister and its
// spec, and a line in Specs. One that is only reported is an entry of reportedSpecs, and a file in pkg/inspect/listers
// with its lister. (A few that were only reported at first have their listers there still.)
type KindSpec struct {
	Kind
	List Lister // nil where pkg/inspect/listers has it
	// FromRuntime marks the kinds that are listed by asking the runtime. They are listed after local objects, so that
	// the runtime's answers are newer than the objects they are compared with: see Inventory.
	FromRuntime bool
	// GoneFrom names the witnesses that must not know the object's sandbox or container either (Runtime, Containerd),
	// besides the apiserver and kubelet, which must not know its pod.
	GoneFrom []string
	// OptIn marks the kinds that the daemon releases only where the configuration names them: see remediate.Settings.
	OptIn bool
	// Minor marks the kinds that do little harm: a pod that left nothing else is worth no warning.
	Minor bool
	// MinAge is for how long an object must have been seen, where that is more than the grace period.
	MinAge time.Duration
	// ReportOnly says why the agent never releases objects of this kind; empty where pkg/remediate has an action. Such
	// objects are evaluated as all others are. They stop no release, and do not count as orphaned pods.
	ReportOnly string
	// InUse returns what uses an object that may be shared by pods, by what the witnesses say of them; empty: nothing.
	InUse func(*Inventory, *Object) string
	// Unused says what was made sure of besides, where nothing names the pod of an object of this kind.
	Unused string

	What string // an object of this kind, and its owner
	Harm string // what it does to the node and to other pods
}

// stage is the part of a pass in which objects of the kind are listed.
func (s KindSpec) stage() hostscan.Stage {
	if s.FromRuntime {
		return hostscan.Runtime
	}
	return hostscan.Local
}

// ofSandbox are the witnesses that know a sandbox and its containers.
var ofSandbox = []string{Runtime, Containerd}

// Specs lists all kinds, in the order in which leftovers of one pod are released.
func Specs() []KindSpec {
	rootfs, sandboxDirectory := runtimeDirectorySpecs()
	return append([]KindSpec{
		sandboxSpec(), containerSpec(), containerdContainerSpec(), processSpec(), shimSpec(), rootfs,
		attachmentSpec(), netnsSpec(), linkSpec(), ipamLeaseSpec(), leaseSpec(),
		sandboxDirectory, mountSpec(), cgroupSpec(), podDirectorySpec(),
		systemdUnitSpec(), podLogsSpec(),
	}, reportedSpecs()...)
}

// Kinds are all kinds, in the order in which leftovers of one pod are released.
func Kinds() []Kind {
	specs := Specs()
	kinds := make([]Kind, len(specs))
	for i, spec := range specs {
		kinds[i] = spec.Kind
	}
	return kinds
}

// allSpecs are Specs by their kind, made once: they are asked for each object of each pass.
var allSpecs = sync.OnceValue(func() map[Kind]*KindSpec {
	specs := Specs()
	byKind := make(map[Kind]*KindSpec, len(specs))
	for i := range specs {
		byKind[specs[i].Kind] = &specs[i]
	}
	return byKind
})

// specOf returns what is said about a kind; nothing about one that does not exist.
func specOf(kind Kind) *KindSpec {
	if spec := allSpecs()[kind]; spec != nil {
		return spec
	}
	return &KindSpec{Kind: kind}
}

// ReportOnly returns why objects of a kind are never released; empty where pkg/remediate has an action.
func (k Kind) ReportOnly() string { return specOf(k).ReportOnly }

// OptIn reports whether the daemon releases objects of a kind only where the configuration names it.
func (k Kind) OptIn() bool { return specOf(k).OptIn }

// Minor reports whether a pod that left nothing but objects of such kinds is worth no warning: those that do little harm,
// and those that are only reported.
func (k Kind) Minor() bool { return specOf(k).Minor || k.ReportOnly() != "" }

// Releasable returns the report without the kinds that are only reported, and without the errors of their listers.
func (r Report) Releasable() Report {
	r.Objects = slices.DeleteFunc(slices.Clone(r.Objects),
		func(o Assessment) bool { return o.Kind.ReportOnly() != "" })
	r.Errors = slices.DeleteFunc(slices.Clone(r.Errors),
		func(f Failure) bool { return Kind(f.What).ReportOnly() != "" })
	return r
}
