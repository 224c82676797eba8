'use strict';
const root = document.documentElement;
if (matchMedia('(prefers-color-scheme: dark)').matches) root.classList.add('dark');
const turn = () => root.classList.toggle('dark');
document.getElementById('theme').addEventListener('click', turn);
addEventListener('keydown', e => { if (e.key === 't' && !e.ctrlKey && !e.metaKey && !e.altKey) turn(); });
