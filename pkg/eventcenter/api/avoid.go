package api

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/web"
)

const (
	avoidAge   = 5 * time.Second // how long a client may reuse a response
	stormShare = 0.2             // of the nodes of a pool
	staleAfter = 2.5             // intervals without a message from any agent
	lostCheck  = "silence"       // instead of a check in the reason of a lost node
	lateCheck  = "pod-delivery"  // a detector sees that the node fails its pods

	notHeard, neverHeard = "NotHeard", "NeverHeard"
)

// Avoid is the response to /v1/avoid. A reader must use all nodes if it cannot read the response or if it is stale: then
// it has a reason.
type Avoid struct {
	StaleReason string      `json:"staleReason,omitempty"` // NotHeard, or NeverHeard: no present node has reported
	StaleSince  *time.Time  `json:"staleSince,omitempty"`  // the last report of an agent; without agents, the end of a detector's
	Pools       []AvoidPool `json:"pools"`
}

// AvoidPool is a group of interchangeable nodes: those of a cluster with the same value of the pool's label.
type AvoidPool struct {
	Cluster string      `json:"cluster"`
	Pool    string      `json:"pool,omitempty"`
	Nodes   int         `json:"nodes"` // in total
	Storm   bool        `json:"storm"` // so many that the cause may be elsewhere: only fatal ones are listed
	Avoid   []AvoidNode `json:"avoid"`
}

// AvoidNode is a node that new pods should avoid now.
type AvoidNode struct {
	Node    string        `json:"node"`
	Reasons []AvoidReason `json:"reasons"`
}

// AvoidReason is a fatal fault, a fault pod-delivery of a detector, or that the node is lost: the check is then "silence". A
// node whose agent alone is silent is not listed.
type AvoidReason struct {
	Check   string    `json:"check"`
	Reason  string    `json:"reason"`
	Subject string    `json:"subject"`
	Since   time.Time `json:"since"`

	Detector string `json:"detector,omitempty"` // the detector that reported it; empty: the node's agent

	fatal bool // a fault of this severity, which is listed in a storm too
}

// avoidCache caches the response, since every pod may ask for it.
type avoidCache struct {
	mu   sync.Mutex // guards the fields below
	at   time.Time  // zero: not computed yet
	text []byte
	etag string
}

// avoided handles GET /v1/avoid.
func (s *Server) avoided(w http.ResponseWriter, r *http.Request, _ web.Identity) {
	if err := Only(r.URL.Query()); err != nil {
		s.fail(w, r, err)
		return
	}
	text, etag := s.avoidText()
	w.Header().Set("ETag", etag)
	w.Header().Set("Cache-Control", "private, max-age=5")
	if known := r.Header.Get("If-None-Match"); known == "*" || strings.Contains(known, etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text)
}

// avoidText returns the response, computed at most once a second.
func (s *Server) avoidText() (text []byte, etag string) {
	c := &s.avoid
	c.mu.Lock()
	defer c.mu.Unlock()
	now := s.Now()
	if now.Sub(c.at) < avoidAge/5 && !now.Before(c.at) {
		return c.text, c.etag
	}
	text, err := json.Marshal(s.avoidNow(now))
	if err != nil {
		text = []byte(`{"pools":[]}`) // plain data: Marshal cannot fail
	}
	sum := sha256.Sum256(text)
	c.at, c.text, c.etag = now, append(text, '\n'), `"`+hex.EncodeToString(sum[:8])+`"`
	return c.text, c.etag
}

func (s *Server) avoidNow(now time.Time) Avoid {
	answer := Avoid{Pools: []AvoidPool{}}
	last, detectors := s.Model.LastSeen() // without agents, the list holds as long as detectors' reports
	if last.IsZero() {
		last = detectors
	}
	switch {
	case last.IsZero():
		answer.StaleReason = neverHeard
		return answer
	case now.Sub(last) > time.Duration(staleAfter*float64(s.Alive)):
		answer.StaleReason, answer.StaleSince = notHeard, &last
	}
	nodes, _ := s.Model.Nodes("")
	faults, _ := s.Model.Faults(func(f model.NodeFault) bool {
		return f.Severity == finding.Fatal || f.Check == lateCheck && f.Detector != ""
	})
	reasons := map[model.Key][]AvoidReason{}
	for _, f := range faults {
		key := model.Key{Cluster: f.Cluster, Node: f.Node}
		reasons[key] = append(reasons[key], AvoidReason{Check: f.Check, Reason: f.Reason, Subject: f.Subject.String(),
			Since: f.RaisedAt, Detector: f.Detector, fatal: f.Severity == finding.Fatal})
	}
	pools := map[model.Key]*AvoidPool{}
	for _, n := range nodes {
		key := model.Key{Cluster: n.Cluster, Node: n.Pool}
		p := pools[key]
		if p == nil {
			p = &AvoidPool{Cluster: n.Cluster, Pool: n.Pool, Avoid: []AvoidNode{}}
			pools[key] = p
		}
		p.Nodes++
		why := reasons[model.Key{Cluster: n.Cluster, Node: n.Node}]
		if n.Silence != nil && n.Silence.State == model.Lost {
			why = append(why, AvoidReason{Check: lostCheck, Reason: n.Silence.Reason, Subject: "node/" + n.Node,
				Since: n.Silence.Since})
		}
		if len(why) > 0 {
			p.Avoid = append(p.Avoid, AvoidNode{n.Node, why})
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(pools), func(a, b model.Key) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node))
	}) {
		p := pools[key]
		p.Storm = float64(len(p.Avoid)) > stormShare*float64(p.Nodes)
		if p.Storm {
			p.Avoid = fatalOnly(p.Avoid)
		}
		answer.Pools = append(answer.Pools, *p)
	}
	return answer
}

// fatalOnly returns the nodes with a fatal fault.
func fatalOnly(nodes []AvoidNode) []AvoidNode {
	return slices.DeleteFunc(nodes, func(n AvoidNode) bool {
		return !slices.ContainsFunc(n.Reasons, func(r AvoidReason) bool { return r.fatal })
	})
}
