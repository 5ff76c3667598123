// Package pages shows the verdicts to people: the health of the cluster, failures, a pod with its waterfall, leftovers and
// components. Package web has their layout, and signing in. A person sees the pods that they may get.
package pages

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// Config is the configuration of the pages.
type Config struct {
	Server   *api.Server
	Sessions *web.Sessions
	Provider web.SignIn // nil: people sign in only with codes
	Version  string
}

//go:embed templates
var files embed.FS

type pages struct {
	*api.Server
	*web.Site
}

// New returns the handler of all pages.
func New(c Config) http.Handler {
	p := &pages{Server: c.Server, Site: web.New(web.Config{Program: "tracecenter", Name: "trace center", Templates: files,
		Blocks:    []string{"templates/blocks.html"},
		Functions: functions, Sessions: c.Sessions, Provider: c.Provider, Log: c.Server.Log, Now: c.Server.Now, Version: c.Version,
		Navigation: []web.Link{
			{Page: "board", Name: "Health", Path: "/"},
			{Page: "failures", Name: "Failures", Path: "/failures"},
			{Page: "pod", Name: "Pod", Path: "/pods"},
			{Page: "terminating", Name: "Terminating", Path: "/terminating"},
			{Page: "nodes", Name: "Nodes", Path: "/nodes"},
			{Page: "components", Name: "Components", Path: "/components"},
			{Page: "versions", Name: "Versions", Path: "/versions"},
			{Page: "report", Name: "Report", Path: "/report"},
		}})}
	mux := http.NewServeMux()
	for pattern, answer := range map[string]func(http.ResponseWriter, *http.Request, web.Session){
		"GET /{$}":                     p.page("board", p.board),
		"GET /failures":                p.page("failures", p.ofPods(p.failures)),
		"GET /pods":                    p.search,
		"GET /pods/{uid}":              p.pod,
		"GET /pods/{namespace}/{name}": p.pod,
		"GET /terminating":             p.page("terminating", p.ofPods(p.terminating)),
		"GET /nodes":                   p.page("nodes", p.ofCluster(answer("Nodes", "/v1/nodes", p.Nodes))),
		"GET /components":              p.page("components", answer("Components online", "/v1/components?window=1d", p.Components)),
		"GET /versions":                p.page("versions", answer("Versions", "/v1/versions", p.Versions)),
		"GET /report":                  p.page("report", p.ofPods(p.report)),
	} {
		mux.HandleFunc(pattern, p.SignedIn(answer))
	}
	return p.Site.Handler(mux)
}

var functions = template.FuncMap{
	"ratio":   report.Percent,
	"enough":  func() int { return sli.Enough },
	"seconds": func(s float64) string { return fmt.Sprintf("%.1f s", s) },
	"stage":   stage.Describe,
	"names":   names,
	"pod": func(namespace, name string) string {
		return "/pods/" + url.PathEscape(namespace) + "/" + url.PathEscape(name)
	},
	"query":  func(s string) string { return url.QueryEscape(s) },
	"chart":  chart,
	"levels": func(l any) string { return strings.ToLower(fmt.Sprint(l)) },
	"since":  func(d time.Duration) string { return d.Round(time.Second).String() },
}

// names lists the most frequent names with their numbers.
func names(tops sli.Tops) string {
	var parts []string
	for _, t := range tops {
		parts = append(parts, fmt.Sprintf("%s (%d)", t.Name, t.N))
	}
	return strings.Join(parts, ", ")
}

// view makes the content of a page.
type view func(*http.Request, web.Session) (web.View, error)

// page shows a view, or why there is none.
func (p *pages) page(name string, of view) func(http.ResponseWriter, *http.Request, web.Session) {
	return func(w http.ResponseWriter, r *http.Request, who web.Session) {
		v, err := of(r, who)
		if err != nil {
			p.fails(w, r, err)
			return
		}
		p.Show(w, r, http.StatusOK, name, v)
	}
}

// fails shows that there is no answer, and the reason if it is the request's.
func (p *pages) fails(w http.ResponseWriter, r *http.Request, err error) {
	no, isDenied := errors.AsType[denied](err)
	refusal, isRefusal := errors.AsType[*web.Refusal](err)
	switch {
	case isDenied:
		p.Show(w, r, no.Status, "denied", web.View{Title: "No right to read this", Data: no})
	case isRefusal:
		p.Message(w, r, refusal.Status, refusal.Reason)
	default:
		p.Server.Log.Error("show a page failed", "path", r.URL.Path, "err", err)
		p.Message(w, r, http.StatusServiceUnavailable, "This cannot be read now: try again.")
	}
}

// denied says that a person may not get the pods of a namespace, and lets them choose another.
type denied struct {
	*web.Refusal
	Filter []web.Field
}

// ofPods is for those who may get the pods of the namespace in the query; without one, of all namespaces.
func (p *pages) ofPods(next view) view {
	return func(r *http.Request, who web.Session) (web.View, error) {
		if err := p.MayRead(r.Context(), who.Identity(), r.URL.Query().Get("namespace")); err != nil {
			return web.View{}, denied{web.RefusalOf(err, http.StatusForbidden), fields(r)}
		}
		return next(r, who)
	}
}

// ofCluster is for those who may get the pods of all namespaces.
func (p *pages) ofCluster(next view) view {
	return func(r *http.Request, who web.Session) (web.View, error) {
		if err := p.MayRead(r.Context(), who.Identity(), ""); err != nil {
			return web.View{}, web.RefusalOf(err, http.StatusForbidden)
		}
		return next(r, who)
	}
}

// answer shows the answer to a question.
func answer[T any](title, json string, ask func(context.Context, url.Values) (T, error)) view {
	return func(r *http.Request, _ web.Session) (web.View, error) {
		answer, err := ask(r.Context(), nil)
		return web.View{Title: title, JSON: json, Data: answer}, err
	}
}

func fields(r *http.Request, more ...string) []web.Field {
	return web.Fields(r.URL.Query(), map[string][]string{"window": {"5m", "1h", "1d", "7d"}}, append([]string{"namespace"}, more...)...)
}

// boardView is the first page. Health and components name no pods; the rest needs a right.
type boardView struct {
	Health     health.State
	Components api.Components
	Windows    []api.SLIs // nil: the person may not read all pods
	Failures   api.Failures
	Namespace  string
	Filter     []web.Field
}

func (p *pages) board(r *http.Request, who web.Session) (web.View, error) {
	namespace := r.URL.Query().Get("namespace")
	v := boardView{Health: p.Health(), Namespace: namespace, Filter: fields(r)}
	var err error
	if v.Components, err = p.Components(r.Context(), nil); err == nil && p.MayRead(r.Context(), who.Identity(), namespace) == nil {
		for _, window := range []string{"5m", "1h", "1d"} {
			answer, failed := p.SLIs(r.Context(), url.Values{"window": {window}, "namespace": {namespace}})
			v.Windows, err = append(v.Windows, answer), cmp.Or(err, failed)
		}
		var failed error
		v.Failures, failed = p.Failures(r.Context(), url.Values{"namespace": {namespace}})
		err = cmp.Or(err, failed)
	}
	return web.View{Title: "Health of the cluster", JSON: "/v1/health", Data: v}, err
}

type failuresView struct {
	api.Failures
	Filter []web.Field
	Query  string // without the reason
	Reason string
}

func (p *pages) failures(r *http.Request, _ web.Session) (web.View, error) {
	q := r.URL.Query()
	answer, err := p.Failures(r.Context(), q)
	return web.View{Title: "Failures", JSON: "/v1/failures?" + r.URL.RawQuery, Data: failuresView{answer, fields(r, "reason", "nodes", "window"),
		web.With(q, "reason", "").Encode(), q.Get("reason")}}, err
}

type terminatingView struct {
	Pods   []follow.Terminating
	Filter []web.Field
}

func (p *pages) terminating(r *http.Request, _ web.Session) (web.View, error) {
	pods, err := p.Terminating(r.Context(), r.URL.Query())
	return web.View{Title: "Terminating", JSON: "/v1/terminating?" + r.URL.RawQuery, Data: terminatingView{pods, fields(r)}}, err
}

type reportView struct {
	Filter        []web.Field
	Namespace     string
	Content       template.HTML
	Earlier, Mail template.URL // queries
}

func (p *pages) report(r *http.Request, _ web.Session) (web.View, error) {
	q := r.URL.Query()
	made, err := p.Report(r.Context(), q.Get("week"), q.Get("namespace"))
	if err != nil {
		return web.View{}, err
	}
	content, err := made.Page()
	asked := url.Values{"week": {made.Week}, "namespace": {made.Namespace}}
	before := report.WeekOf(made.From.Add(-24 * time.Hour))
	v := reportView{fields(r, "week"), made.Namespace, content, template.URL(web.With(asked, "week", before).Encode()), //nolint:gosec // encoded
		template.URL(web.With(asked, "format", "html").Encode())} //nolint:gosec // encoded
	return web.View{Title: made.Title(), JSON: "/v1/report?" + asked.Encode(), Data: v}, err
}

// search leads to the page of a pod.
func (p *pages) search(w http.ResponseWriter, r *http.Request, _ web.Session) {
	text := strings.Trim(r.URL.Query().Get("pod"), "/ ")
	if text == "" {
		p.Show(w, r, http.StatusOK, "pod", web.View{Title: "Pod", Data: podView{}})
		return
	}
	parts := strings.Split(text, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	http.Redirect(w, r, "/pods/"+strings.Join(parts[:min(len(parts), 2)], "/"), http.StatusSeeOther) //nolint:gosec // a page of this site: each part is escaped
}

type podView struct {
	api.Pod
	Query string
}

func (p *pages) pod(w http.ResponseWriter, r *http.Request, who web.Session) {
	uid, namespace, name := r.PathValue("uid"), r.PathValue("namespace"), r.PathValue("name")
	query := cmp.Or(uid, namespace+"/"+name)
	pod, err := p.Pod(r.Context(), uid, namespace, name)
	if err != nil {
		p.fails(w, r, err)
		return
	}
	if len(pod.Acts) > 0 {
		namespace, name = pod.Acts[0].Namespace, pod.Acts[0].Name
	}
	title, status := "Pod "+namespace+"/"+name, http.StatusOK
	if namespace == "" || p.MayRead(r.Context(), who.Identity(), namespace) != nil {
		pod = api.Pod{} // whether it exists is not told
	}
	if len(pod.Acts) == 0 {
		title, status = "Pod "+query, http.StatusNotFound
	}
	p.Show(w, r, status, "pod", web.View{Title: title, JSON: "/v1" + r.URL.EscapedPath(), Data: podView{pod, query}})
}

// The measures of a waterfall, in pixels.
const (
	chartWidth = 720
	labelWidth = 190

	durationWidth = 130
	lineHeight    = 22
	barHeight     = 14
	minBar        = 2
)

// Chart is the waterfall of an act as a picture.
type Chart struct {
	Width, Height int
	Seconds       float64 // of the whole picture
	Lines         []Line
}

// Line is a stage in a waterfall.
type Line struct {
	api.Bar
	Y, TextY, X, Width int
	LabelX             int    // of the duration
	Class              string // whose time it is
}

// chart returns the waterfall of an act; one without stages has no lines.
func chart(a api.Act) Chart {
	c := Chart{Width: chartWidth, Height: lineHeight*len(a.Bars) + lineHeight}
	for _, b := range a.Bars {
		c.Seconds = max(c.Seconds, b.From+b.Seconds)
	}
	if c.Seconds <= 0 {
		c.Seconds = 1
	}
	scale := float64(chartWidth-labelWidth-durationWidth) / c.Seconds
	for i, b := range a.Bars {
		l := Line{Bar: b, Y: i*lineHeight + (lineHeight-barHeight)/2, TextY: i*lineHeight + lineHeight - 6, X: labelWidth + int(b.From*scale),
			Width: max(minBar, int(b.Seconds*scale)), Class: "system"}
		l.LabelX = l.X + l.Width + 6
		if stage.Describe(b.Stage).User || strings.HasPrefix(b.Owner, "user") {
			l.Class = "user"
		}
		c.Lines = append(c.Lines, l)
	}
	return c
}
