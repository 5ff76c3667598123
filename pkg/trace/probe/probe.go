// Package probe measures how often the components of a control plane are online: each apiserver by its own address,
// etcd through the apiservers, the scheduler and the controller-manager by their Leases.
//
// A probe that fails while the prober itself may be cut off counts against no component; nor does one of an address that
// never answered, because apiservers may publish addresses that others cannot reach.
//
// It also counts the throttled requests of tenants, and reads the firing alerts of an Alertmanager.
package probe

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/chore"
)

const (
	interval    = 5 * time.Second
	limit       = 2 * time.Second
	offlineFrom = 3 // failed probes in a row
	findEvery   = time.Minute
	maxServers  = 32
	maxBody     = 64 << 10
	maxCounts   = 24 * 60 * (2*maxServers + 2) // kept while they cannot be stored
)

// Apiservers is the access to the apiservers.
type Apiservers interface {
	// Configured returns the address that the program itself uses, host:port.
	Configured() string
	// Addresses returns the address of each apiserver, host:port.
	Addresses(ctx context.Context) ([]string, error)
	// At returns a client that connects to one address, and the URL of a path there.
	At(address, path string) (client *http.Client, url string, err error)
}

// Leaders reports whether a leader renews its Lease; known is false if that cannot be told.
type Leaders interface {
	Renewed(lease string, now time.Time) (renewed, known bool)
}

// Count are the probes of one minute.
type Count struct {
	Minute    time.Time
	Component string
	Instance  string
	Good, Bad int
	Blind     int // they do not count
}

// State is a component's present state.
type State struct {
	Component string    `json:"component"`
	Instance  string    `json:"instance"`
	State     string    `json:"state"` // Online, Offline or Unclear
	Since     time.Time `json:"since"`
	Why       string    `json:"why,omitempty"` // the last failure
}

// The states of a component.
const (
	Online  = "online"
	Offline = "offline"
	Unclear = "unknown"
)

type instance struct {
	State
	reached bool // it was online once: before that, its address may be one that cannot be reached from here
	failed  int  // probes in a row
	probed  time.Time
}

// Prober probes the components. Its zero value is not ready: use New.
type Prober struct {
	servers Apiservers
	leaders Leaders
	log     *slog.Logger

	mu        sync.Mutex // guards the fields below
	instances map[[2]string]*instance
	counts    map[Count]Count // not taken yet; the keys have no numbers
	minute    time.Time       // of the last round
}

// New returns a prober.
func New(servers Apiservers, leaders Leaders, log *slog.Logger) *Prober {
	return &Prober{servers: servers, leaders: leaders, log: log, instances: map[[2]string]*instance{}, counts: map[Count]Count{}}
}

// Run probes until ctx ends.
func (p *Prober) Run(ctx context.Context) {
	var addresses []string
	find := func(ctx context.Context, _ time.Time) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		found, err := p.servers.Addresses(ctx)
		if err == nil {
			slices.Sort(found)
			addresses = found[:min(len(found), maxServers)]
		}
		return err
	}
	chore.Repeat(ctx, p.log, interval, chore.Chore{Name: "find the apiservers", Every: findEvery, Do: find},
		chore.Chore{Name: "probe", Do: func(ctx context.Context, _ time.Time) error {
			p.round(ctx, p.reachable(addresses), time.Now())
			return nil
		}})
}

// reachable adds the address that the program itself uses, unless one of the published addresses could be reached.
func (p *Prober) reachable(published []string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	reached := func(address string) bool {
		i := p.instances[[2]string{"apiserver", address}]
		return i != nil && i.reached
	}
	if own := p.servers.Configured(); !slices.Contains(published, own) && !slices.ContainsFunc(published, reached) {
		return append(slices.Clone(published), own)
	}
	return published
}

// answer is what an apiserver said to a probe.
type answer struct {
	reached bool // something answered at the address, if only by refusing the connection
	status  int
	err     error
}

// round probes each component once.
func (p *Prober) round(ctx context.Context, addresses []string, now time.Time) {
	servers, etcds := make([]answer, len(addresses)), make([]answer, len(addresses))
	var all sync.WaitGroup
	for i, address := range addresses {
		all.Go(func() { servers[i] = p.ask(ctx, address, "/readyz") })
		all.Go(func() { etcds[i] = p.ask(ctx, address, "/readyz/etcd") })
	}
	all.Wait()
	if ctx.Err() != nil {
		return
	}
	reached := slices.ContainsFunc(servers, func(a answer) bool { return a.reached })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.minute = now.Truncate(time.Minute)
	for i, address := range addresses {
		state, why := judge(servers[i], reached)
		p.take("apiserver", address, state, why, now)
	}
	if len(addresses) > 0 {
		state, why := judgeEtcd(etcds)
		p.take("etcd", "by the apiservers", state, why, now)
	}
	for component, lease := range map[string]string{"scheduler": "kube-scheduler", "controller-manager": "kube-controller-manager"} {
		state, why := Unclear, ""
		switch renewed, known := p.leaders.Renewed(lease, now); {
		case known && renewed:
			state = Online
		case known:
			state, why = Offline, "its Lease is not renewed"
		}
		p.take(component, "Lease "+lease, state, why, now)
	}
	maps.DeleteFunc(p.instances, func(_ [2]string, i *instance) bool { return now.Sub(i.probed) > findEvery }) // removed ones are not offline
}

// judge judges an apiserver by one answer. reached means that the prober has reached one of the apiservers in this round.
func judge(a answer, reached bool) (state, why string) {
	switch {
	case a.status == http.StatusOK:
		return Online, ""
	case a.status == http.StatusUnauthorized, a.status == http.StatusForbidden:
		return Unclear, "no right to get /readyz"
	case a.status != 0:
		return Offline, http.StatusText(a.status)
	case reached:
		return Offline, a.err.Error()
	}
	return Unclear, a.err.Error()
}

// judgeEtcd judges etcd by the apiservers that answer: it is online if one of them can use it.
func judgeEtcd(answers []answer) (state, why string) {
	state = Unclear
	for _, a := range answers {
		switch a.status {
		case http.StatusOK:
			return Online, ""
		case http.StatusInternalServerError:
			state, why = Offline, "the apiservers' check of etcd fails"
		}
	}
	return state, why
}

func (p *Prober) ask(ctx context.Context, address, path string) answer {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	response, err := p.get(ctx, address, path, true)
	if err != nil {
		sent, ok := errors.AsType[*url.Error](err)
		isLost := !ok || sent.Timeout() || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
		return answer{reached: !isLost, err: err}
	}
	_, _ = io.CopyN(io.Discard, response.Body, maxBody)
	response.Body.Close()
	return answer{reached: true, status: response.StatusCode}
}

// get asks one apiserver; once over a connection of its own: an old one may be all that still works.
func (p *Prober) get(ctx context.Context, address, path string, once bool) (*http.Response, error) {
	client, url, err := p.servers.At(address, path)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Close = once
	return client.Do(request)
}

// take counts a probe, by the state that it shows. A component is offline only after some failed probes.
func (p *Prober) take(component, name, state, why string, now time.Time) {
	key := [2]string{component, name}
	i := p.instances[key]
	if i == nil {
		i = &instance{State: State{Component: component, Instance: name, State: Unclear, Since: now}}
		p.instances[key] = i
	}
	if state == Offline && !i.reached {
		state, why = Unclear, "never online from here: "+why
	}
	one := Count{Minute: p.minute, Component: component, Instance: name}
	i.probed, i.Why, i.failed = now, why, i.failed+1
	switch state {
	case Online:
		one.Good, i.failed, i.reached = 1, 0, true
	case Offline:
		one.Bad = 1
		if i.failed < offlineFrom {
			state = i.State.State
		}
	default:
		one.Blind, i.failed = 1, 0
	}
	p.add(one)
	if state != i.State.State {
		i.State.State, i.Since = state, now
		p.log.Info("state of a component changed", "component", component, "instance", name, "state", state, "why", i.Why)
	}
}

// add adds to the counts. It needs mu.
func (p *Prober) add(c Count) {
	key := Count{Minute: c.Minute, Component: c.Component, Instance: c.Instance}
	if sum, known := p.counts[key]; known || len(p.counts) < maxCounts {
		c.Good, c.Bad, c.Blind = c.Good+sum.Good, c.Bad+sum.Bad, c.Blind+sum.Blind
		p.counts[key] = c
	}
}

// online returns the addresses of the apiservers that answer.
func (p *Prober) online() (addresses []string) {
	for _, s := range p.States() {
		if s.Component == "apiserver" && s.State == Online {
			addresses = append(addresses, s.Instance)
		}
	}
	return addresses
}

// Take returns the counts of other minutes than that of the last round, once.
func (p *Prober) Take() (taken []Count) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, c := range p.counts {
		if !c.Minute.Equal(p.minute) {
			taken = append(taken, c)
			delete(p.counts, key)
		}
	}
	return taken
}

// Return adds counts: those that could not be stored, and those of other readers.
func (p *Prober) Return(counts []Count) {
	slices.SortFunc(counts, func(a, b Count) int { return b.Minute.Compare(a.Minute) }) // if there are too many, the oldest go
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range counts {
		p.add(c)
	}
}

// States returns the components' states, sorted.
func (p *Prober) States() (states []State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range p.instances {
		states = append(states, i.State)
	}
	slices.SortFunc(states, func(a, b State) int {
		return cmp.Or(cmp.Compare(a.Component, b.Component), cmp.Compare(a.Instance, b.Instance))
	})
	return states
}
