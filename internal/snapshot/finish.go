package snapshot

import (
	"tenon.dev/fault"
	"tenon.dev/internal/pickle"
)

// finish reads what is left in the pickle: the order of segments, the number of traces, settings, annotations and trees.
func (b *builder) finish(d *pickle.Data) error {
	if err := b.flush(d); err != nil {
		return err
	}
	root := d.Root()
	segments, hasSegments := d.Get(root, "segments")
	traces, hasTraces := d.Get(root, "device_traces")
	switch {
	case root.Kind() == pickle.KindList && len(b.s.Segments) > 0: // the short form: segments alone
		segments, hasSegments = root, true
	case root.Kind() != pickle.KindDict || !hasSegments && !hasTraces:
		return fault.New(fault.Invalid, "the pickle is not a memory snapshot: it has neither segments nor device_traces")
	}
	if hasSegments {
		if err := b.orderSegments(d, segments); err != nil {
			return err
		}
	} else {
		b.s.Segments = nil
	}
	if hasTraces {
		if _, none := index(traces, tagStack); !none && traces.Kind() != pickle.KindList {
			return wrong(traces, "device_traces")
		}
		b.devices = max(b.devices, min(len(d.Items(traces)), maxDevices))
	}
	for len(b.s.Traces) < b.devices {
		b.s.Traces = append(b.s.Traces, nil)
	}
	if v, ok := d.Get(root, "allocator_settings"); ok {
		left := maxSettings
		settings, err := plain(d, v, settingsDepth, &left)
		if err != nil {
			return err
		}
		if b.s.Settings, ok = settings.(map[string]any); !ok {
			return wrong(v, "allocator_settings")
		}
	}
	if v, ok := d.Get(root, "external_annotations"); ok {
		if err := b.annotations(d, v); err != nil {
			return err
		}
	}
	if v, ok := d.Get(root, "graph_trees"); ok {
		return b.trees(d, v)
	}
	return nil
}

// orderSegments puts the segments in the order of the list; a segment that is in the list twice is there twice.
func (b *builder) orderSegments(d *pickle.Data, list pickle.Ref) error {
	if _, none := index(list, tagStack); none {
		b.s.Segments = nil
		return nil
	}
	if list.Kind() != pickle.KindList {
		return wrong(list, "segments")
	}
	items := d.Items(list)
	if err := d.Charge(160 * len(items)); err != nil {
		return err
	}
	ordered := make([]Segment, len(items))
	for i, r := range items {
		k, ok := index(r, tagSegment)
		if !ok {
			return wrong(r, "a segment")
		}
		ordered[i] = b.s.Segments[k]
	}
	b.s.Segments = ordered
	return nil
}

func (b *builder) annotations(d *pickle.Data, list pickle.Ref) error {
	if _, none := index(list, tagStack); none {
		b.s.Annotations = []Annotation{}
		return nil
	}
	items := d.Items(list)
	if err := d.Charge(64 * len(items)); err != nil {
		return err
	}
	for _, r := range items {
		var a Annotation
		stage, _ := d.Get(r, "stage")
		name, _ := d.Get(r, "name")
		device, _ := d.Get(r, "device")
		when, _ := d.Get(r, "time_us")
		var ok1, ok2, ok3, ok4 bool
		a.Stage, ok1 = d.Str(stage)
		a.Name, ok2 = d.Str(name)
		n, ok3 := d.Int(device)
		a.TimeUS, ok4 = d.Int(when)
		if !ok1 || !ok2 || !ok3 || !ok4 {
			return wrong(r, "an annotation")
		}
		a.Device = int(n)
		b.s.Annotations = append(b.s.Annotations, a)
	}
	return nil
}

// settingsDepth is how deep maps of settings may be nested, and maxSettings how many values they may have. A map that is shared counts each
// time.
const (
	settingsDepth = 4
	maxSettings   = 1 << 14
)

// plain returns a setting as a Go value, and counts down what is left.
func plain(d *pickle.Data, v pickle.Ref, depth int, left *int) (any, error) {
	if *left--; *left < 0 {
		return nil, fault.New(fault.Invalid, "allocator_settings has more than %d values", maxSettings)
	}
	switch v.Kind() {
	case pickle.KindNone:
		return nil, nil
	case pickle.KindBool:
		t, _ := d.Bool(v)
		return t, nil
	case pickle.KindInt:
		if n, ok := d.Int(v); ok {
			return n, nil
		}
		f, _ := d.Float(v)
		return f, nil
	case pickle.KindFloat:
		f, _ := d.Float(v)
		return f, nil
	case pickle.KindString:
		s, _ := d.Str(v)
		return s, nil
	case pickle.KindDict:
		items := d.Items(v)
		if depth == 0 {
			break
		}
		if err := d.Charge(64 * len(items)); err != nil {
			return nil, err
		}
		m := make(map[string]any, len(items)/2)
		for i := 0; i < len(items); i += 2 {
			k, ok := d.Str(items[i])
			if !ok {
				return nil, wrong(items[i], "the name of a setting")
			}
			value, err := plain(d, items[i+1], depth-1, left)
			if err != nil {
				return nil, err
			}
			m[k] = value
		}
		return m, nil
	}
	return nil, wrong(v, "a setting")
}
