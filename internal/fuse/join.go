package fuse

import "slices"

// Join lets conversions of different arrays run together: casts of the weights of all layers before the first, those of their gradients
// after the last. They have nothing in common, but one launch costs less than many. A call runs earlier only if what it reads is there and
// later only while nobody needs what it makes, and only where the wait raises no peak of memory.
func (g *Graph) Join(l Limits) {
	j := &joining{g: g, l: l, place: make([]int, len(g.Calls)), until: make([]int, len(g.Calls))}
	for i := range g.Calls {
		j.place[i] = i
	}
	for k := range g.Groups {
		for _, i := range g.Groups[k].Calls {
			j.place[i] = g.Groups[k].At
		}
	}
	j.weigh()
	early, rest := j.early(j.candidates())
	for _, s := range append(early, j.late(rest)...) {
		set := Set{Calls: s.calls, Join: true, At: s.at}
		for k, i := range s.calls {
			set.Ins, set.Outs = append(set.Ins, Ref{i, 0}), append(set.Outs, Ref{i, 0})
			set.From = append(set.From, []Source{{-1, k}})
		}
		g.Groups = append(g.Groups, set)
	}
}

// joining is a run of Join.
type joining struct {
	g *Graph
	l Limits
	// place is where every call runs, ready and until the first and the last place where a call that may be joined can.
	place, ready, until []int
	// held is how many bytes of new storages are in use at every place, and peak the most of them.
	held []int
	peak int
	// ends is the last place where the input of a call that may be joined is needed, if it is memory of the segment, and size the bytes of
	// that.
	ends, size []int
}

// joint is a set under construction, at the place at.
type joint struct {
	calls []int
	at    int
}

// weigh finds out when memory is in use, and when the calls can run.
func (j *joining) weigh() {
	g, n := j.g, len(j.g.Calls)
	type span struct{ born, last, bytes int }
	made, live := map[int]*span{}, g.live()
	inside := map[int]bool{} // what groups make for themselves alone
	for k := range g.Groups {
		s := &g.Groups[k]
		for _, i := range s.Calls {
			for o := range g.Calls[i].Outs {
				inside[g.Calls[i].Outs[o].Storage] = true
			}
		}
		for _, r := range s.Outs {
			inside[g.Calls[r.Call].Outs[r.Index].Storage] = false
		}
	}
	for i := range g.Calls {
		c := &g.Calls[i]
		for o := range c.Outs {
			if s := c.Outs[o].Storage; !c.into(o) && !inside[s] {
				made[s] = &span{j.place[i], j.place[i], 0}
			}
		}
		for k := range len(c.Ins) + len(c.Outs) {
			v := c.at(k)
			if m := made[v.Storage]; m != nil {
				m.last, m.bytes = max(m.last, j.place[i]), max(m.bytes, v.Bytes())
				if live[v.Storage] {
					m.last = n - 1
				}
			}
		}
	}
	j.held = make([]int, n+1)
	for _, m := range made {
		j.held[m.born] += m.bytes
		j.held[m.last+1] -= m.bytes
	}
	for p := range n {
		if p > 0 {
			j.held[p] += j.held[p-1]
		}
		j.peak = max(j.peak, j.held[p])
	}
	j.ready, j.ends, j.size = make([]int, n), make([]int, n), make([]int, n)
	writer, joined := map[int]int{}, map[int][]int{} // by storage: who wrote it, and the conversions that have read or made it
	for i := range g.Calls {
		c := &g.Calls[i]
		j.until[i] = n - 1
		c.uses(func(s int, write bool) {
			for _, k := range joined[s] {
				if write || g.Calls[k].Outs[0].Storage == s {
					j.until[k] = min(j.until[k], i-1)
				}
			}
		})
		if c.Converts {
			s := c.Ins[0].Storage
			if w, ok := writer[s]; ok {
				j.ready[i] = j.place[w] + 1
			}
			if j.ends[i] = n; made[s] != nil {
				j.ends[i], j.size[i] = made[s].last, made[s].bytes
			}
			joined[s], joined[c.Outs[0].Storage] = append(joined[s], i), append(joined[c.Outs[0].Storage], i)
		}
		c.uses(func(s int, write bool) {
			if write {
				writer[s] = i
			}
		})
	}
}

// candidates returns the conversions that are in no group, by stream and types.
func (j *joining) candidates() [][]int {
	type key struct{ lane, from, to int }
	number, of := map[key]int{}, j.g.groupOf()
	var all [][]int
	for i := range j.g.Calls {
		c := &j.g.Calls[i]
		if !c.Converts || c.Effect || c.Checks || of[i] != nil || c.Ins[0].Bytes()+c.Outs[0].Bytes() > j.l.Joined {
			continue
		}
		k := key{c.Lane, int(c.Ins[0].DType), int(c.Outs[0].DType)}
		n, ok := number[k]
		if !ok {
			n = len(all)
			number[k], all = n, append(all, nil)
		}
		all[n] = append(all[n], i)
	}
	return all
}

// early joins calls at the place of the first of them, and returns those that remain alone.
func (j *joining) early(of [][]int) (done []*joint, rest [][]int) {
	for _, calls := range of {
		var sets []*joint
		for _, i := range calls {
			out := j.g.Calls[i].Outs[0].Bytes()
			k := slices.IndexFunc(sets, func(s *joint) bool {
				return j.ready[i] <= s.at && !slices.ContainsFunc(j.held[s.at:i], func(held int) bool { return held+out > j.peak })
			})
			if k < 0 {
				sets = append(sets, &joint{[]int{i}, i})
				continue
			}
			sets[k].calls = append(sets[k].calls, i)
			for p := sets[k].at; p < i; p++ {
				j.held[p] += out
			}
		}
		var alone []int
		for _, s := range sets {
			if len(s.calls) > 1 {
				done = append(done, s)
			} else {
				alone = append(alone, s.calls[0])
			}
		}
		rest = append(rest, alone)
	}
	return done, rest
}

// late joins calls at the place of the last of them.
func (j *joining) late(of [][]int) (done []*joint) {
	for _, calls := range of {
		var sets []*joint
		for _, i := range calls {
			k := slices.IndexFunc(sets, func(s *joint) bool { return j.waits(s, i) })
			if k < 0 {
				sets = append(sets, &joint{[]int{i}, i})
				continue
			}
			s := sets[k]
			for p, more := range j.waiting(s, i) {
				j.held[s.at+p] += more
			}
			s.calls, s.at = append(s.calls, i), i
		}
		for _, s := range sets {
			if len(s.calls) > 1 {
				done = append(done, s)
			}
		}
	}
	return done
}

// waits reports whether the calls of s can wait for call i.
func (j *joining) waits(s *joint, i int) bool {
	if slices.ContainsFunc(s.calls, func(k int) bool { return j.until[k] < i }) {
		return false
	}
	for p, more := range j.waiting(s, i) {
		if j.held[s.at+p]+more > max(j.peak, j.held[s.at+p]) {
			return false
		}
	}
	return true
}

// waiting returns how many bytes more are in use at the places from that of s to that of call i if s waits for i. Its calls' outputs are
// not there yet; what they read still is.
func (j *joining) waiting(s *joint, i int) []int {
	more := make([]int, i-s.at+1)
	outs := 0
	for _, k := range s.calls {
		outs += j.g.Calls[k].Outs[0].Bytes()
		for p := max(s.at, j.ends[k]) + 1; p <= i; p++ {
			more[p-s.at] += j.size[k]
		}
	}
	for p := range more[:i-s.at] {
		more[p] -= outs
	}
	return more
}
