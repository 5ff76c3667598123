package api

import (
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
func (s *Server) nodes(w http.ResponseWriter, r *http.Request, _ web.Identity) {
	values := r.URL.Query()
	if !only(w, values, "cluster", "state", "pool", "zone", "version", "notversion", "blind", "agent") {
		return
	}
	nodes, offset := s.Model.Nodes("")
	common := model.CommonVersions(nodes)
	nodes = slices.DeleteFunc(nodes, func(n model.Summary) bool { return !asked(values, n, common) })
	respond(w, http.StatusOK, NodeList{strconv.FormatUint(offset, 10), s.Journal.Bounds().Journal, nodes, common,
		s.Model.SilentClusters()})
}

// asked reports whether a node is selected.
func asked(values url.Values, n model.Summary, common map[string]string) bool {
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

func (s *Server) node(w http.ResponseWriter, r *http.Request, _ web.Identity) {
	values := r.URL.Query()
	if !only(w, values, "limit", "before") {
		return
	}
	limit, err := limitOf(values, defaultLimit, maxLimit)
	before, err2 := offsetOf("before", values.Get("before"))
	if err != nil || err2 != nil {
		refuse(w, http.StatusBadRequest, fmt.Sprint(err, err2), nil)
		return
	}
	key := model.Key{Cluster: r.PathValue("cluster"), Node: r.PathValue("node")}
	detail, offset, ok := s.Model.Node(key)
	if !ok {
		refuse(w, http.StatusNotFound, "nothing was ever heard of this node", nil)
		return
	}
	page, err := s.Journal.Read(r.Context(), journal.Query{After: before, Limit: limit, Backward: true,
		Filter: journal.Filter{journal.Cluster: {key.Cluster}, journal.Node: {key.Node}}})
	if err != nil {
		s.readFailed(w, r, err)
		return
	}
	answer := NodeAnswer{Offset: strconv.FormatUint(offset, 10), Journal: s.Journal.Bounds().Journal, Node: detail,
		Events: []Item{}}
	for _, record := range page.Records {
		answer.Events = append(answer.Events, itemOf(record))
	}
	if len(page.Records) == limit {
		answer.Before = strconv.FormatUint(page.Next, 10)
	}
	respond(w, http.StatusOK, answer)
}

func (s *Server) faults(w http.ResponseWriter, r *http.Request, _ web.Identity) {
	values := r.URL.Query()
	if !only(w, values, "cluster", "node", "severity", "check", "reason", "detector", "limit") {
		return
	}
	limit, err := limitOf(values, maxLimit, 10*maxLimit)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error(), nil)
		return
	}
	faults, offset := s.Model.Faults(func(f model.NodeFault) bool {
		return passes(values["cluster"], f.Cluster) && passes(values["node"], f.Node) &&
			passes(values["severity"], string(f.Severity)) && passes(values["check"], f.Check) &&
			passes(values["reason"], f.Reason) && passes(values["detector"], f.Detector)
	})
	respond(w, http.StatusOK, FaultList{strconv.FormatUint(offset, 10), s.Journal.Bounds().Journal, len(faults),
		faults[:min(limit, len(faults))]})
}

// passes reports whether a value is wanted. An empty list means any.
func passes(wanted []string, value string) bool {
	return len(wanted) == 0 || slices.Contains(wanted, value)
}

// only refuses unknown parameters.
func only(w http.ResponseWriter, values url.Values, names ...string) bool {
	for name := range values {
		if !slices.Contains(names, name) {
			refuse(w, http.StatusBadRequest, fmt.Sprintf("unknown parameter %.40q", name), nil)
			return false
		}
	}
	return true
}
