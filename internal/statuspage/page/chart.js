// A chart of the last minutes or the last hour: the allowed requests of a zone, and the denied ones on top of them.
// Denied requests are hatched, so their color doesn't matter. Requests that
// a zone in shadow mode would deny are at the top of the allowed ones, dotted and above a dashed line.

const chartMinutes = 3;
const chartHeight = 96;
const svgNames = 'http://www.w3.org/2000/svg';

function svg(name, attributes, ...children) {
	const e = document.createElementNS(svgNames, name);
	for (const [attribute, value] of Object.entries(attributes)) e.setAttribute(attribute, value);
	e.append(...children);
	return e;
}

const noRate = ofEachKind(() => null);

let charts = 0;

class Chart {
	constructor(name, minutes) {
		this.name = name;
		this.minutes = minutes;
		this.points = []; // rates, with at as of elapsed(). Null rates are a gap
		this.width = 300;
		const id = `hatch-${charts++}`;
		this.allowed = svg('path', { class: 'area allowed' });
		this.allowedLine = svg('path', { class: 'line allowed' });
		this.would = svg('path', { class: 'area would', fill: `url(#${id}-dots)` });
		this.wouldLine = svg('path', { class: 'line would' });
		this.denied = svg('path', { class: 'area denied', fill: `url(#${id})` });
		this.deniedLine = svg('path', { class: 'line denied' });
		this.grid = svg('path', { class: 'grid' });
		this.top = svg('text', { class: 'tick', x: 0, y: 9 });
		this.svg = svg('svg', { class: 'chart', role: 'img', height: chartHeight, width: '100%' },
			svg('defs', {}, svg('pattern', { id, width: 6, height: 6, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' },
				svg('rect', { class: 'hatch-ground', width: 6, height: 6 }), svg('rect', { class: 'hatch', width: 2.5, height: 6 })),
			svg('pattern', { id: `${id}-dots`, width: 6, height: 6, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' }, svg('circle', { class: 'hatch', cx: 3, cy: 3, r: 1 }))),
			this.grid, this.allowed, this.would, this.denied, this.wouldLine, this.allowedLine, this.deniedLine, this.top);
		this.caption = element('p', { class: 'chart-caption', 'aria-hidden': 'true' }, element('span', {}, `${minutes} min ago`), element('span', {}, 'now'));
		this.element = element('div', { class: 'chart-box' }, this.svg, this.caption);
		new ResizeObserver(([entry]) => {
			this.width = Math.max(80, Math.round(entry.contentRect.width));
			this.draw();
		}).observe(this.svg);
		this.svg.addEventListener('pointermove', (event) => this.point(event));
		this.svg.addEventListener('pointerleave', () => this.point(null));
	}

	add(at, rate) {
		this.points.push({ at, ...(rate || noRate) });
		while (this.points[0].at < at - this.minutes * 60000) this.points.shift();
		this.draw();
	}

	// last adds up the requests of the last seconds, and the seconds that they took.
	last(seconds) {
		const total = { seconds: 0, ...ofEachKind(() => 0) };
		const end = this.points.length ? this.points[this.points.length - 1].at : 0;
		this.points.forEach((p, i) => {
			if (i === 0 || p.allowed === null || p.at < end - seconds * 1000) return;
			const span = (p.at - this.points[i - 1].at) / 1000;
			total.seconds += span;
			for (const kind of kindNames) total[kind] += p[kind] * span;
		});
		return total;
	}

	// scale returns the least round number that is not below the highest point.
	scale() {
		let peak = 1;
		for (const p of this.points) if (p.allowed !== null) peak = Math.max(peak, p.allowed + p.denied);
		const unit = 10 ** Math.floor(Math.log10(peak));
		return [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= peak * 1.001 || n === 10 * unit);
	}

	draw() {
		const { width } = this;
		const height = chartHeight;
		const top = this.scale();
		const end = this.points.length ? this.points[this.points.length - 1].at : 0;
		const x = (p) => (width - ((end - p.at) / (this.minutes * 60000)) * width).toFixed(1);
		const y = (rate) => (height - 1 - (rate / top) * (height - 14)).toFixed(1);
		const runs = [];
		let run = null;
		for (const p of this.points) {
			if (p.allowed === null) run = null;
			else if (run) run.push(p);
			else runs.push((run = [p]));
		}
		const along = (list, rate) => list.map((p) => `${x(p)} ${y(rate(p))}`).join('L');
		const allowed = (p) => p.allowed;
		const both = (p) => p.allowed + p.denied;
		const enforced = (p) => p.allowed - p.shadowDenied;
		const none = () => 0;
		const area = (list, upper, lower) => `M${along(list, upper)}L${along([...list].reverse(), lower)}Z`;
		const withDenials = runs.flatMap((list) => split(list, (p) => p.denied > 0));
		const withShadow = runs.flatMap((list) => split(list, (p) => p.shadowDenied > 0));
		this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
		this.grid.setAttribute('d', `M0 ${y(0)}H${width}M0 ${y(top / 2)}H${width}M0 ${y(top)}H${width}`);
		this.allowed.setAttribute('d', runs.map((list) => area(list, allowed, none)).join(''));
		this.allowedLine.setAttribute('d', runs.map((list) => `M${along(list, allowed)}`).join(''));
		this.would.setAttribute('d', withShadow.map((list) => area(list, allowed, enforced)).join(''));
		this.wouldLine.setAttribute('d', withShadow.map((list) => `M${along(list, enforced)}`).join(''));
		this.denied.setAttribute('d', withDenials.map((list) => area(list, both, allowed)).join(''));
		this.deniedLine.setAttribute('d', withDenials.map((list) => `M${along(list, both)}`).join(''));
		setText(this.top, `${integer.format(top)}/s`);
		this.describe();
	}

	// describe says in words what the chart shows. The words change every ten seconds, or when requests
	// begin or end, because screen readers read them again.
	describe() {
		const last = this.points[this.points.length - 1];
		if (!last) return;
		const kind = `${last.allowed === null} ${kindNames.map((k) => last[k] > 0)}`;
		if (kind === this.described?.kind && last.at - this.described.at < 10000) return;
		this.described = { at: last.at, kind };
		const rates = this.points.filter((p) => p.allowed !== null);
		const isDry = rates.some((p) => p.shadowDenied > 0);
		const words = (rate) => `${formatRate(rate.allowed)} allowed and ${formatRate(rate.denied)} denied per second` +
			(isDry ? `, and ${formatRate(rate.shadowDenied)} of the allowed would be denied (shadow mode)` : '');
		const peaks = ofEachKind((k) => Math.max(0, ...rates.map((p) => p[k])));
		this.svg.setAttribute('aria-label', `Requests of zone ${this.name} in the last ${this.minutes} minutes. ` +
			`${last.allowed === null ? 'No numbers now' : `Now ${words(last)}`}. At most ${words(peaks)}.`);
	}

	// point shows the rates below the pointer.
	point(event) {
		const [left, right] = this.caption.children;
		let near = null;
		if (event && this.points.length) {
			const box = this.svg.getBoundingClientRect();
			const end = this.points[this.points.length - 1].at;
			const at = end - (1 - (event.clientX - box.left) / box.width) * this.minutes * 60000;
			near = this.points.reduce((a, b) => (Math.abs(b.at - at) < Math.abs(a.at - at) ? b : a));
			if (Math.abs(near.at - at) > this.minutes * 1000 || near.allowed === null) near = null;
		}
		setText(left, near ? clock.format(Date.now() - (elapsed() - near.at)) : `${this.minutes} min ago`);
		const would = near && near.shadowDenied > 0 ? ` (${formatRate(near.shadowDenied)} would be denied)` : '';
		setText(right, near ? `${formatRate(near.allowed)} allowed${would}, ${formatRate(near.denied)} denied per second` : 'now');
	}
}

// split returns the runs of points for which something holds, each with a neighbor on both sides.
function split(list, holds) {
	const runs = [];
	let run = null;
	list.forEach((p, i) => {
		if (holds(p)) {
			if (!run) runs.push((run = i > 0 ? [list[i - 1]] : []));
			run.push(p);
		} else if (run) {
			run.push(p);
			run = null;
		}
	});
	return runs;
}
