package api

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// NodeList is the response to /v1/nodes. It is the state at the offset: later events follow it in /v1/events.
type NodeList struct {
	Offset  uint64          `json:"offset,string"`
	Journal string          `json:"journal"`
	Nodes   []model.Summary `json:"nodes"`
	// CommonVersions are the versions that most agents of each cluster have.
	CommonVersions map[string]string `json:"commonVersions"`
	// SilentClusters have so many silent nodes that these are not reported one by one.
	SilentClusters []model.ClusterState `json:"silentClusters,omitempty"`
}

// FaultList is the response to /v1/faults, most severe first.
type FaultList struct {
	Offset  uint64            `json:"offset,string"`
	Journal string            `json:"journal"`
	Total   int               `json:"total"` // at most the limit are listed
	Faults  []model.NodeFault `json:"faults"`
}

// NodeAnswer is the response to /v1/nodes/{cluster}/{node}: the state and the latest events, newest first.
type NodeAnswer struct {
	Offset  uint64       `json:"offset,string"`
	Journal string       `json:"journal"`
	Node    model.Detail `json:"node"`
	Events  []Item       `json:"events"`
	Before  uint64       `json:"before,string,omitempty"` // cursor for the events before these; 0: there are none
}

// nodes handles GET /v1/nodes. version and notversion select agents with a version, or with any other; blind selects
// nodes with a check that cannot tell; agent selects those with an unusual agent.
func (s *Server) nodes(r *http.Request, _ web.Identity) (any, error) {
	values := r.URL.Query()
	err := Known(values, "state", "seen", string(model.Blind), string(model.Lost))
	if err = cmp.Or(err, KnownAgent(values)); err != nil {
		return nil, err
	}
	nodes, offset := s.Model.Nodes("")
	for i, n := range nodes {
		nodes[i] = s.Model.At(n, s.Now(), s.Alive)
	}
	common := model.CommonVersions(nodes)
	nodes = slices.DeleteFunc(nodes, func(n model.Summary) bool { return !SelectsNode(values, n, common) })
	return NodeList{offset, s.Journal.Bounds().Journal, nodes, common, s.Model.SilentClusters()}, nil
}

// SelectsNode reports whether the parameters of a query select a node, as it is at a time. common are the versions of
// most agents.
func SelectsNode(values url.Values, n model.Summary, common map[string]string) bool {
	blind, agent := values["blind"], values["agent"]
	odd := func(o string) bool { return n.Odd(model.Oddity(o), common) }
	if len(agent) > 0 && !slices.ContainsFunc(agent, odd) {
		return false
	}
	return passes(values["cluster"], n.Cluster) && passes(values["state"], n.State) && passes(values["pool"], n.Pool) && passes(values["zone"], n.Zone) &&
		passes(values["version"], n.Version) && !slices.Contains(values["notversion"], n.Version) &&
		(len(blind) == 0 || slices.ContainsFunc(n.Blind, func(check string) bool { return slices.Contains(blind, check) }))
}

func (s *Server) node(r *http.Request, _ web.Identity) (any, error) {
	limit, err := limitOf(r.URL.Query(), defaultLimit, maxLimit)
	if err != nil {
		return nil, err
	}
	return s.Node(r, limit)
}

// Node answers about the node in the path of a request, with the latest events before its cursor.
func (s *Server) Node(r *http.Request, limit int) (NodeAnswer, error) {
	key := model.Key{Cluster: r.PathValue("cluster"), Node: r.PathValue("node")}
	detail, offset, ok := s.Model.Node(key)
	if !ok {
		return NodeAnswer{}, refused(http.StatusNotFound, "nothing was ever heard of this node")
	}
	detail.Summary = s.Model.At(detail.Summary, s.Now(), s.Alive)
	events, before, err := s.Newest(r, url.Values{"cluster": {key.Cluster}, "node": {key.Node},
		"before": {r.URL.Query().Get("before")}}, limit)
	return NodeAnswer{offset, s.Journal.Bounds().Journal, detail, events, before}, err
}

func (s *Server) faults(r *http.Request, _ web.Identity) (any, error) {
	values := r.URL.Query()
	limit, err := limitOf(values, maxLimit, 10*maxLimit)
	if err != nil {
		return nil, err
	}
	if err := KnownFault(values); err != nil {
		return nil, err
	}
	faults, offset := s.Model.Faults(SelectsFault(values))
	return FaultList{offset, s.Journal.Bounds().Journal, len(faults), faults[:min(limit, len(faults))]}, nil
}

// SelectsFault returns whether the parameters of a query select a fault.
func SelectsFault(values url.Values) func(model.NodeFault) bool {
	return func(f model.NodeFault) bool {
		return passes(values["cluster"], f.Cluster) && passes(values["node"], f.Node) &&
			passes(values["severity"], string(f.Severity)) && passes(values["check"], f.Check) &&
			passes(values["reason"], f.Reason) && passes(values["detector"], f.Detector)
	}
}

// passes reports whether a value is wanted. An empty list means any.
func passes(wanted []string, value string) bool {
	return len(wanted) == 0 || slices.Contains(wanted, value)
}

// Only refuses unknown parameters.
func Only(values url.Values, names ...string) error {
	for name := range values {
		if !slices.Contains(names, name) {
			return refused(http.StatusBadRequest, fmt.Sprintf("unknown parameter %.40q", name))
		}
	}
	return nil
}

// Known refuses values of a parameter that none of the possible ones is.
func Known(values url.Values, name string, possible ...string) error {
	for _, value := range values[name] {
		if !slices.Contains(possible, value) {
			return refused(http.StatusBadRequest, fmt.Sprintf("%s %.40q: want %s", name, value, strings.Join(possible, ", ")))
		}
	}
	return nil
}

// KnownFault refuses a query that can select no fault.
func KnownFault(values url.Values) error {
	return Known(values, "severity", string(finding.Fatal), string(finding.Warning), string(finding.Info))
}

// KnownAgent refuses a query for an oddity that no agent can have.
func KnownAgent(values url.Values) error {
	return Known(values, "agent", string(model.OtherVersion), string(model.BlindChecks), string(model.WrongClock))
}
