// Package fleet limits how many nodes of a pool are disrupted at once, and how many are isolated. There is no shared
// counter, which any node's token could change: each node makes its own claim, a Lease that only it can create and
// delete and that is never updated, and the oldest live claims of a pool hold its slots. Without the apiserver there is
// no slot. This package decides and asks; it does not disrupt.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Leases are the operations on the apiserver that claims need. All calls end when their context does.
type Leases interface {
	// CreateLease returns the stored Lease. With dryRun the request is checked but not stored.
	CreateLease(ctx context.Context, lease *coordinationv1.Lease, dryRun bool) (*coordinationv1.Lease, error)
	// ListLeases lists consistently, and returns the apiserver's time (Date) of the answer.
	ListLeases(ctx context.Context, namespace, selector string) ([]coordinationv1.Lease, time.Time, error)
	// DeleteLease deletes the Lease with that UID, or with any UID if it is empty.
	DeleteLease(ctx context.Context, namespace, name, uid string) error
}

// Cluster holds the other requests to the apiserver.
type Cluster struct {
	Leases Leases
	// Node reads the Node of this node.
	Node func(ctx context.Context) (*corev1.Node, error)
	// Isolated reports whether a Node has our taint that keeps pods away. A Node that does not exist has none.
	Isolated func(ctx context.Context, node string) (bool, error)
	// Nodes returns how many Nodes the cluster has.
	Nodes func(ctx context.Context) (int, error)
	// Paused reports whether the object exists by which an operator pauses the fleet.
	Paused func(ctx context.Context, namespace, name string) (bool, error)
}

// Config configures the claims of one node. Settings and Cluster must be set.
type Config struct {
	Settings
	Cluster Cluster
	Now     func() time.Duration // since boot, sleep included: the clock that ends a slot
	Log     *slog.Logger

	Poll time.Duration // how often a waiting claim looks again, more or less; zero: DefaultPoll
	// Patience is how long a claim may wait beyond the time of its action; zero: DefaultPatience. An older claim starts
	// again at the end of the queue: Patience exceeds twelve times Poll, or no claim would reach the front.
	Patience time.Duration
	Rand     func() float64
	// Claiming is called before a claim is made, to record that there may be claims to remove; may be nil.
	Claiming func()
}

const (
	// MaxFor bounds the duration of a claim; the admission policy does too.
	MaxFor = 30 * time.Minute
	// Skew is the largest difference of two apiservers' clocks: a claim counts that much longer for all others.
	Skew = time.Minute
	// margin is how much earlier than its claim a holder stops: the apiserver's times have whole seconds.
	margin = 2 * time.Second
	// PauseName is the ConfigMap in the namespace of the claims that pauses all disruptive actions while it exists.
	PauseName = "pause"

	// DefaultPoll and DefaultPatience are the defaults of Config.
	DefaultPoll     = 10 * time.Second
	DefaultPatience = 5 * time.Minute

	identityAge  = time.Hour        // how long the pool, the UID of the Node and the number of Nodes are believed
	withdrawTime = 10 * time.Second // of the request that withdraws a claim when its caller has given up
)

// The reasons for having no slot. Any other error means that the apiserver did not answer.
var (
	ErrIdentity   = errors.New("refused: this identity may not hold a slot")
	ErrUnconfined = errors.New("the apiserver would let this node claim in the name of another: install the chart with " +
		"admissionPolicy.enabled")
	ErrPaused  = errors.New("the fleet is paused by ConfigMap " + PauseName)
	ErrStorm   = errors.New("too many nodes wait for a slot: no more nodes are disrupted")
	ErrWaiting = errors.New("all slots are held")
	ErrHeld    = errors.New("this node holds a slot already")
)

// Fleet makes the claims of one node. It is safe for concurrent use.
type Fleet struct {
	config Config

	mu       sync.Mutex // guards all below
	node     string     // name of this node
	uid      string     // of its Node object
	pool     string
	asOf     time.Duration // of the three above and of confined; zero: never
	total    int           // Nodes of the cluster
	totalAt  time.Duration // zero: never
	slot     *slot         // held or waited for
	dates    dates
	isolated isolation
	freed    map[string]bool // UIDs of claims whose time is over and whose place is free
	status   Status
}

// Status is the state for people.
type Status struct {
	Pool    string `json:"pool,omitempty"`    // value of the Node's label; empty: the whole cluster
	Refused string `json:"refused,omitempty"` // why this identity may not hold a slot
	Slot    string `json:"slot,omitempty"`    // the action that holds one
	Waiting string `json:"waiting,omitempty"` // why the action that wants one has none
	// IsolationSpent is why this node is not isolated although it should be.
	IsolationSpent string `json:"isolationSpent,omitempty"`
}

// New returns the claims of a node.
func New(c Config) *Fleet {
	c.Poll = cmp.Or(c.Poll, DefaultPoll)
	c.Patience = cmp.Or(c.Patience, DefaultPatience)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	return &Fleet{config: c}
}

// Status returns the known state without a request.
func (f *Fleet) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// self returns the name of this node.
func (f *Fleet) self() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.node
}

// setStatus changes the status, and logs a refusal once.
func (f *Fleet) setStatus(change func(*Status)) {
	f.mu.Lock()
	before := f.status
	change(&f.status)
	after := f.status
	f.mu.Unlock()
	if after.Refused != "" && after.Refused != before.Refused {
		f.config.Log.Warn("no slot of the fleet budget", "err", after.Refused)
	}
}

// refusal returns err, as ErrIdentity if the apiserver has refused the request because of the agent's identity.
func (f *Fleet) refusal(err error) error {
	if err == nil {
		f.setStatus(func(s *Status) { s.Refused = "" })
		return nil
	}
	if !apierrors.IsForbidden(err) && !errors.Is(err, ErrUnconfined) {
		return err
	}
	if apierrors.IsForbidden(err) {
		err = fmt.Errorf("%w: %w", ErrIdentity, err)
	}
	f.setStatus(func(s *Status) { s.Refused = err.Error() })
	return err
}

// identify finds the identity and pool of this node, and verifies that the admission policy exists.
func (f *Fleet) identify(ctx context.Context) error {
	now := f.config.Now()
	f.mu.Lock()
	known := f.asOf > 0 && now-f.asOf < identityAge
	f.mu.Unlock()
	if known {
		return nil
	}
	node, err := f.config.Cluster.Node(ctx)
	if err != nil {
		return fmt.Errorf("read the Node: %w", err)
	}
	pool := ""
	if key := f.config.Pool; key != "" {
		if pool = node.Labels[key]; pool == "" {
			return fmt.Errorf("the Node has no label %s: its pool is not known", key)
		}
	}
	f.mu.Lock()
	f.node, f.uid, f.pool = node.Name, string(node.UID), pool
	f.mu.Unlock()
	if err := f.confined(ctx); err != nil {
		return f.refusal(err)
	}
	f.setStatus(func(s *Status) { s.Pool, s.Refused = pool, "" })
	f.mu.Lock()
	f.asOf = now
	f.mu.Unlock()
	return nil
}

// policyRefusal is in the apiserver's answer if a ValidatingAdmissionPolicy, and not RBAC, has refused a request.
const policyRefusal = "ValidatingAdmissionPolicy"

// confined tries, as a dry run, to claim in the name of another node. If no admission policy refuses that, any node
// could free or take all slots, and a budget is meaningless.
func (f *Fleet) confined(ctx context.Context) error {
	lease := f.lease(Slot, Slot.names("probe." + f.self())[0], "probe", time.Minute)
	_, err := f.config.Cluster.Leases.CreateLease(ctx, lease, true)
	switch {
	case err == nil:
		return ErrUnconfined
	case apierrors.IsForbidden(err) && contains(err, policyRefusal):
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("create a claim: %w", err)
	}
	return fmt.Errorf("verify the admission policy of claims: %w", err)
}

// paused returns ErrPaused while an operator pauses the fleet. An unanswered request counts as paused.
func (f *Fleet) paused(ctx context.Context) error {
	paused, err := f.config.Cluster.Paused(ctx, f.config.Namespace, PauseName)
	switch {
	case err != nil:
		return f.refusal(fmt.Errorf("read ConfigMap %s/%s, which would pause the fleet: %w", f.config.Namespace, PauseName,
			err))
	case paused:
		return fmt.Errorf("%w of namespace %s", ErrPaused, f.config.Namespace)
	}
	return nil
}

// create makes a claim. It first removes a claim of that name left by an earlier attempt or agent, since its age is
// unknown.
func (f *Fleet) create(ctx context.Context, kind Kind, name, action string, duration time.Duration) (Claim, error) {
	lease := f.lease(kind, name, action, duration)
	if f.config.Claiming != nil {
		f.config.Claiming()
	}
	made, err := f.config.Cluster.Leases.CreateLease(ctx, lease, false)
	if apierrors.IsAlreadyExists(err) {
		if err := f.remove(ctx, name, ""); err != nil {
			return Claim{}, err
		}
		made, err = f.config.Cluster.Leases.CreateLease(ctx, lease, false)
	}
	if f.refusal(err) != nil {
		return Claim{}, f.refusal(fmt.Errorf("claim %s: %w", name, err))
	}
	return claimOf(made)
}

// remove deletes a claim of this node, if it is there.
func (f *Fleet) remove(ctx context.Context, name, uid string) error {
	err := f.config.Cluster.Leases.DeleteLease(ctx, f.config.Namespace, name, uid)
	if err == nil || apierrors.IsNotFound(err) || uid != "" && apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("delete claim %s: %w", name, err)
}

// list returns the claims of a kind in the pool of this node, and the apiserver's time.
func (f *Fleet) list(ctx context.Context, kind Kind) ([]Claim, time.Time, error) {
	leases, date, err := f.config.Cluster.Leases.ListLeases(ctx, f.config.Namespace, f.selector(kind))
	if err != nil {
		return nil, date, f.refusal(fmt.Errorf("list claims: %w", err))
	}
	if date.IsZero() {
		return nil, date, errors.New("list claims: the apiserver's answer has no date")
	}
	claims := make([]Claim, len(leases))
	for i := range leases {
		if claims[i], err = claimOf(&leases[i]); err != nil {
			return nil, date, err
		}
	}
	if kind == Isolate {
		f.stand(ctx, claims, date)
	}
	f.mu.Lock()
	bound, jumped := f.dates.bound(date, f.config.Now())
	f.mu.Unlock()
	if jumped {
		f.config.Log.Warn("the clock of the apiserver has jumped: other nodes' claims keep their duration")
	}
	for i := range claims {
		c := &claims[i]
		c.Stands = c.Stands || c.Node != f.self() && c.over(date) && !c.over(bound)
	}
	return claims, date, nil
}

// dates limits the apiserver's clock to the time passed on this machine's clock since boot: a jump ahead would end the
// claims of all nodes, while their holders go on. It does not know the time before the start of this agent.
type dates struct {
	last     time.Time     // the apiserver's; zero: none yet
	at       time.Duration // when that was, since boot
	jumpedAt time.Duration // zero: it did not
}

// bound returns the latest possible time, and whether a jump was just noticed. Once all claims from before a jump have
// ended, the new time is trusted.
func (d *dates) bound(date time.Time, now time.Duration) (latest time.Time, jumped bool) {
	latest = d.last.Add(now - d.at + Skew)
	if d.last.IsZero() || !date.After(latest) || d.jumpedAt > 0 && now-d.jumpedAt > MaxFor+Skew {
		*d = dates{last: date, at: now}
		return date, false
	}
	jumped = d.jumpedAt == 0
	if jumped {
		d.jumpedAt = now
	}
	return latest, jumped
}

// Retire deletes all claims of this node. No agent may run.
func (f *Fleet) Retire(ctx context.Context, node string) (removed []string, err error) {
	for _, kind := range []Kind{Slot, Isolate} {
		for _, name := range kind.names(node) {
			gone := f.config.Cluster.Leases.DeleteLease(ctx, f.config.Namespace, name, "")
			switch {
			case gone == nil:
				removed = append(removed, name)
			case apierrors.IsNotFound(gone) || apierrors.IsForbidden(gone): // without the right it never had one
			default:
				err = errors.Join(err, fmt.Errorf("delete claim %s: %w", name, gone))
			}
		}
	}
	return removed, err
}
