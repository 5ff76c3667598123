package pages

import (
	"strings"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
)

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
	LabelX             int // of the duration
	Class              string
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
			Width: max(minBar, int(b.Seconds*scale)), Class: ownerClass(b)}
		l.LabelX = l.X + l.Width + 6
		c.Lines = append(c.Lines, l)
	}
	return c
}

// ownerClass returns the style of a stage: whose time it is.
func ownerClass(b api.Bar) string {
	if stage.Describe(b.Stage).User || strings.HasPrefix(b.Owner, "user") {
		return "user"
	}
	return "system"
}
