package api

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// NodeList is the response to /v1/nodes. It is the state at the offset: later events follow it in /v1/events.
type NodeList struct {
	Offset  string          `json:"offset"`
	Journal string          `json:"journal"`
	Nodes   []model.Summary `json:"nodes"`
	// CommonVersions are the versions that most agents of each cluster have.
	CommonVersions map[string]string `json:"commonVersions"`
	// SilentClusters have so many silent nodes that these are not reported one by one.
	SilentClusters []model.ClusterState `json:"silentClusters,omitempty"`
}

// FaultList is the response to /v1/faults, most severe first.
type FaultList struct {
	Offset  string            `json:"offset"`
	Journal string            `json:"journal"`
	Total   int               `json:"total"` // at most the limit are listed
	Faults  []model.NodeFault `json:"faults"`
}

// NodeAnswer is the response to /v1/nodes/{cluster}/{node}: the state and the latest events, newest first.
type NodeAnswer struct {
	Offset  string       `json:"offset"`
	Journal string       `json:"journal"`
	Node    model.Detail `json:"node"`
	Events  []Item       `json:"events"`
	Before  string       `json:"before,omitempty"` // cursor for the events before these; empty: none
}

// nodes handles GET /v1/nodes. version and notversion select agents with a version, or with any other; blind selects
// nodes with a check that cannot tell; agent selects those with an unusual agent.
func (s *Server) nodes(r *http.Request, _ web.Identity) (any, error) {
	values := r.URL.Query()
	nodes, offset := s.Model.Nodes("")
	common := model.CommonVersions(nodes)
	nodes = slices.DeleteFunc(nodes, func(n model.Summary) bool { return !selected(values, n, common) })
	return NodeList{strconv.FormatUint(offset, 10), s.Journal.Bounds().Journal, nodes, common, s.Model.SilentClusters()}, nil
}

// selected reports whether a node is selected.
func selected(values url.Values, n model.Summary, common map[string]string) bool {
	state := "seen"
	if n.Silence != nil {
		state = string(n.Silence.State)
	}
	blind, agent := values["blind"], values["agent"]
	odd := func(o string) bool { return n.Odd(model.Oddity(o), common) }
	if len(agent) > 0 && !slices.ContainsFunc(agent, odd) {
		return false
	}
	return passes(values["cluster"], n.Cluster) && passes(values["state"], state) && passes(values["pool"], n.Pool) && passes(values["zone"], n.Zone) &&
		passes(values["version"], n.Version) && !slices.Contains(values["notversion"], n.Version) &&
		(len(blind) == 0 || slices.ContainsFunc(n.Blind, func(check string) bool { return slices.Contains(blind, check) }))
}

func (s *Server) node(r *http.Request, _ web.Identity) (any, error) {
	values := r.URL.Query()
	limit, err := limitOf(values, defaultLimit, maxLimit)
	before, err2 := offsetOf("before", values.Get("before"))
	if err := cmp.Or(err, err2); err != nil {
		return nil, err
	}
	key := model.Key{Cluster: r.PathValue("cluster"), Node: r.PathValue("node")}
	detail, offset, ok := s.Model.Node(key)
	if !ok {
		return nil, refused(http.StatusNotFound, "nothing was ever heard of this node")
	}
	page, err := s.Journal.Read(r.Context(), journal.Query{After: before, Limit: limit, Backward: true,
		Filter: journal.Filter{journal.Cluster: {key.Cluster}, journal.Node: {key.Node}}})
	if err != nil {
		return nil, s.unread(r, err)
	}
	answer := NodeAnswer{Offset: strconv.FormatUint(offset, 10), Journal: s.Journal.Bounds().Journal, Node: detail,
		Events: []Item{}}
	for _, record := range page.Records {
		answer.Events = append(answer.Events, itemOf(record))
	}
	if len(page.Records) == limit {
		answer.Before = strconv.FormatUint(page.Next, 10)
	}
	return answer, nil
}

func (s *Server) faults(r *http.Request, _ web.Identity) (any, error) {
	values := r.URL.Query()
	limit, err := limitOf(values, maxLimit, 10*maxLimit)
	if err != nil {
		return nil, err
	}
	faults, offset := s.Model.Faults(func(f model.NodeFault) bool {
		return passes(values["cluster"], f.Cluster) && passes(values["node"], f.Node) &&
			passes(values["severity"], string(f.Severity)) && passes(values["check"], f.Check) &&
			passes(values["reason"], f.Reason) && passes(values["detector"], f.Detector)
	})
	return FaultList{strconv.FormatUint(offset, 10), s.Journal.Bounds().Journal, len(faults),
		faults[:min(limit, len(faults))]}, nil
}

// passes reports whether a value is wanted. An empty list means any.
func passes(wanted []string, value string) bool {
	return len(wanted) == 0 || slices.Contains(wanted, value)
}

// only refuses unknown parameters.
func only(values url.Values, names ...string) error {
	for name := range values {
		if !slices.Contains(names, name) {
			return refused(http.StatusBadRequest, fmt.Sprintf("unknown parameter %.40q", name))
		}
	}
	return nil
}
